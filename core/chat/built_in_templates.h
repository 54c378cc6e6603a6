// Chat templates that need no file. They reject tools and content other than text. The texts and trained tokens of
// identity and the two of Nemotron are those of Megatron-LM's --sft-tokenizer-prompt-format.
#pragma once

#include <string_view>

namespace megalith {

struct BuiltInTemplate {
  std::string_view name;
  std::string_view text;
};

inline constexpr BuiltInTemplate kBuiltInTemplates[] = {
    {"chatml",
     R"({%- if tools %}{{ raise_exception('chatml has no tools') }}{% endif %}
{%- for message in messages %}
    {%- if message.content is not string or message.tool_calls %}
        {{- raise_exception('chatml has content of text alone') }}
    {%- endif %}
    {{- '<|im_start|>' ~ message.role ~ '\n' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}{{ message.content ~ '<|im_end|>' }}{% endgeneration %}
    {%- else %}
        {{- message.content ~ '<|im_end|>' }}
    {%- endif %}
    {{- '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %})"},
    {"llama3",
     R"({%- if tools %}{{ raise_exception('llama3 has no tools') }}{% endif %}
{{- bos_token | default('<|begin_of_text|>') }}
{%- for message in messages %}
    {%- if message.content is not string or message.tool_calls %}
        {{- raise_exception('llama3 has content of text alone') }}
    {%- endif %}
    {{- '<|start_header_id|>' ~ message.role ~ '<|end_header_id|>\n\n' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}{{ message.content | trim ~ '<|eot_id|>' }}{% endgeneration %}
    {%- else %}
        {{- message.content | trim ~ '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %})"},
    {"identity",
     R"({%- if tools %}{{ raise_exception('identity has no tools') }}{% endif %}
{%- for message in messages %}
    {%- if message.content is not string or message.tool_calls %}
        {{- raise_exception('identity has content of text alone') }}
    {%- endif %}
    {%- if message.role == 'assistant' %}
        {%- generation %}{{ message.content }}{% endgeneration %}
    {%- else %}
        {{- message.content }}
    {%- endif %}
{%- endfor %})"},
    {"nemotron-h-aligned",
     R"({%- if tools %}{{ raise_exception('nemotron-h-aligned has no tools') }}{% endif %}
{%- for message in messages %}
    {%- if message.content is not string or message.tool_calls %}
        {{- raise_exception('nemotron-h-aligned has content of text alone') }}
    {%- endif %}
    {%- set content = message.content.strip() ~ '\n' %}
    {%- if message.role == 'system' %}
        {{- '<SPECIAL_10>System\n' ~ content }}
    {%- elif message.role == 'user' %}
        {{- '<SPECIAL_11>User\n' ~ content ~ '<SPECIAL_11>Assistant\n' }}
    {%- elif message.role == 'assistant' %}
        {%- generation %}{{ content }}{% endgeneration %}
    {%- endif %}
{%- endfor %})"},
    {"nemotron-nano-v2",
     R"({%- if tools %}{{ raise_exception('nemotron-nano-v2 has no tools') }}{% endif %}
{%- for message in messages %}
    {%- if message.content is not string or message.tool_calls %}
        {{- raise_exception('nemotron-nano-v2 has content of text alone') }}
    {%- endif %}
    {%- if message.role == 'assistant' %}
        {{- '<SPECIAL_11>Assistant\n' }}
        {%- generation %}{{ message.content.strip() ~ '\n<SPECIAL_12>\n' }}{% endgeneration %}
    {%- elif message.role == 'system' or message.role == 'user' %}
        {{- '<SPECIAL_10>System\n' if message.role == 'system' else '<SPECIAL_11>User\n' }}
        {{- message.content.replace('/think', '').replace('/no_think', '').strip() ~ '\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<SPECIAL_11>Assistant\n' }}{% endif %})"},
};

}  // namespace megalith
