// Chat templates that need no file. They reject tools and content other than text.
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
};

}  // namespace megalith
