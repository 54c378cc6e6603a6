"""Small templates for make_golden.py: each construct of Jinja that core/chat supports, and errors that it shares."""

VARIABLES = {
    "s": "Hello, World", "empty": "", "spaces": "  two  words \n", "multi": "a\nb\n\nc\r\nd",
    "think": "<think>\nplan\n</think>\n\nanswer", "uni": "héllo 中文 \U0001f600 \u00a0end\u2003", "quote": "it's \"q\" \\ \t",
    "n": 7, "neg": -3, "zero": 0, "f": 2.5, "big": 1e22, "small": 1.5e-7, "whole": 3.0, "t": True, "nil": None,
    "l": [3, 1, 2], "words": ["b", "A", "c"], "nested": [[1, 2], [3]], "none_list": [],
    "d": {"name": "x", "items": [1], "count": 2, "b": None},
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"},
                 {"role": "assistant", "content": "Hello!", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1, "b": [True, None]}}}]},
                 {"role": "tool", "content": "42"}],
    "schema": {"type": "object", "properties": {"q": {"type": "string", "description": "a \"q\" <é>"}, "n": {"type": ["integer", "null"]}}, "required": ["q"]},
}

EXPRESSIONS = """
s
n + 1
n - 10
n * f
n / 2
n // 2
neg // 2
neg % 5
n % neg
2 ** 10
2 ** 3 ** 2
2 ** -1
-n
- 2 ** 2
-f|abs
+n
1.5 // 0.4
-7.5 % 2
10 / 5
f // 1
big
small
whole
1e100
0.1 + 0.2
100000.0 * 1000000000000.0
123456789012345680.0
1e16
9999999999999998.0
0.0001
0.00001
5 > 3 > 1
5 > 3 > 4
1 == 1.0
true == 1
'1' == 1
none == none
undefined_a == undefined_b
undefined_a == none
[1, 2] == [1, 2]
[1, 2] == (1, 2)
{'a': 1} == {'a': 1.0}
'a' < 'b'
1 < 'b'
none < 1
'a' in s
'World' in s
'x' not in s
1 in l
4 in l
'name' in d
'nope' in d
'x' in undefined_a
'x' in none
1 in 'abc'
not s
not empty
s and n
empty or 'default'
none or 0
0 or none
n if t else s
n if not t
(n if zero) is undefined
1 if zero else 2 if zero else 3
s ~ n ~ t ~ nil ~ f
s + n
s + '!'
'a' 'b' "c"
'%' ~ 1
'ab' * 3
3 * 'ab'
'ab' * -1
[1] * 2
[1] + [2]
(1,) + (2,)
[1] + (2,)
nil
t
l
words
nested
d
(1,)
()
(1, 'a')
[none, true, 1.0, 'x']
{}
{'a': [1, {'b': "it's"}]}
quote
[quote]
['\\n\\t\\r\\x00\\x7f']
['é中', '\\u200b', '\\u00a0', '\\u00ad']
uni
uni|length
uni[1]
uni[-1]
uni[6:8]
uni[::-1]
s[0]
s[-1]
s[100]
s[100] is undefined
s[1:5]
s[:-1]
s[-5:]
s[::2]
s[10:2:-2]
s[5:2]
l[0]
l[-1]
l[5]
l[5] is defined
l[1:]
l[::-1]
l[:1]
messages[1:]|length
messages[0].role
messages[0]['content']
messages[-1].role
messages[7].role
messages[7] is defined
none_list[-1] is defined
none_list[0].role
d.name
d['name']
d.items is callable
d['items']
d.count
d.b
d.missing
d.missing is defined
d['missing'] is undefined
d.missing.more
undefined_a
undefined_a.b
undefined_a[0]
undefined_a()
undefined_a + 1
undefined_a ~ 'x'
undefined_a < 1
undefined_a|length
undefined_a|default('z')
undefined_a|upper
undefined_a|tojson
undefined_a|list
undefined_a|items|list
undefined_a is iterable
undefined_a is sequence
undefined_a is string
undefined_a is none
undefined_a|trim
undefined_a|string
undefined_a|join(',')
undefined_a|first
nil.foo
nil.foo is defined
nil['foo'] is defined
nil[0] is defined
nil[1:] is defined
range(5)[1:3]|list
d.items()[0] is defined
d.items()[1:]
(l|map('string'))[0] is defined
d[1:]
undefined_a[1:]
n.foo is defined
s.foo is defined
s.foo.bar
l.foo is defined
l['x'] is defined
s['strip']()
nil|length
n|length
s|length
l|length
d|length
l|count
s|upper
s|lower
s|title
"it's a-b (c) d_e {f} <g>"|title
s|capitalize
"hELLO wORLD"|capitalize
spaces|trim
'xxaxx'|trim('x')
uni|trim
[uni|trim]
multi|indent
multi|indent(2)
multi|indent(2, true)
multi|indent(2, first=True, blank=True)
multi|indent(width='> ')
''|indent
'a'|indent
s|replace('l', 'L')
s|replace('l', 'L', 1)
s|replace('', '-')
s|replace('o', '')
n|replace(7, 8)
s|reverse
l|reverse|list
l|first
l|last
none_list|first
none_list|last
s|first
s|last
s|list
d|list
d|first
l|join
l|join(', ')
words|join(' and ')
messages|join('|', attribute='role')
messages|map(attribute='role')|list
messages|map(attribute='role')|join(',')
messages|map(attribute='tool_calls', default=[])|list|length
messages|map(attribute='content')|map('upper')|join(' ')
words|map('upper')|list
words|map('replace', 'b', 'x')|list
nested|map('length')|list
nested|map('first')|list
nested|map(attribute='0')|list
nested|map(attribute=0)|list
messages|selectattr('role', 'equalto', 'user')|map(attribute='content')|list
messages|selectattr('role', '==', 'user')|list|length
messages|selectattr('tool_calls')|list|length
messages|selectattr('tool_calls', 'defined')|list|length
messages|rejectattr('role', 'equalto', 'system')|map(attribute='role')|join(',')
messages|rejectattr('role', 'in', ['system', 'tool'])|map(attribute='role')|list
messages|selectattr('role', 'equalto', 'nobody')|list
messages|selectattr('role', 'equalto', 'user')|first
(messages|selectattr('role', 'equalto', 'user')|first).content
messages|map('length')|list
l|select('odd')|list
l|select('greaterthan', 1)|list
l|reject('even')|list
[0, 1, '', 'a', none]|select|list
l|sort
l|sort(reverse=true)
words|sort
words|sort(case_sensitive=true)
messages|sort(attribute='role')|map(attribute='role')|list
['b', 1]|sort
l|unique|list
['a', 'A', 'b']|unique|list
l|min
l|max
words|min
words|max
none_list|min
l|sum
messages|map(attribute='role')|sum
d|dictsort
{'b': 1, 'A': 2}|dictsort
{'b': 1, 'A': 2}|dictsort(true)
{'b': 1, 'A': 2}|dictsort(by='value')
d|items|list
d.items()|list
d.keys()|list
d.values()|list
d.items()|length
d.get('name')
d.get('nope')
d.get('nope', 'z')
d.get('nope') is none
schema|tojson
schema|tojson(indent=2)
schema|tojson(indent=4, sort_keys=true)
schema|tojson(indent=0)
schema|tojson(indent='\\t')
schema|tojson(separators=(',', ':'))
schema|tojson(ensure_ascii=true)
schema|tojson(true, 1)
[]|tojson
[]|tojson(indent=2)
{}|tojson(indent=2)
[[], {}, [1]]|tojson(indent=2)
(1, 2)|tojson
uni|tojson
uni|tojson(ensure_ascii=True)
quote|tojson
'\\x01\\x1f\\x7f\\b\\f/'|tojson
f|tojson
big|tojson
whole|tojson
true|tojson
none|tojson
'x'|tojson
l|map('string')|list|tojson
l|map('string')|tojson
d.items()|tojson
messages[2].tool_calls[0].function.arguments|tojson
s|string
n|string ~ ''
[n|string]
l|string
nil|string
t|string
s|safe
l|safe
s|safe if t else n
n if zero else d|tojson|safe
s|safe|length
(s|safe) == s
(s|safe) ~ '<' ~ n
'<' ~ (s|safe) ~ (s|upper)
(s|safe) + '<&>"\'' + 'x'
'<' + (s|safe) + ('<'|safe)
('<' + (s|safe))|length
s|safe|string|tojson
s|safe|replace("l", "L") ~ "<"
[s|safe, n]|join(",") ~ "<"
'12'|int
' 12 '|int
'12.7'|int
'x'|int
'x'|int(5)
'x'|int(default=6)
f|int
t|int
nil|int
'1e3'|int
'12'|float
'x'|float
'x'|float(1.5)
n|float
neg|abs
s|default('z')
empty|default('z')
empty|default('z', true)
nil|default('z')
nil|default('z', true)
d.missing|default('z')
d.missing|d('z')
n is odd
n is even
zero is even
neg is odd
n is divisibleby 7
n is divisibleby(2)
s is string
n is string
d is mapping
l is mapping
l is iterable
s is iterable
n is iterable
nil is iterable
l is sequence
d is sequence
s is sequence
n is sequence
n is number
f is number
t is number
s is number
n is integer
t is integer
f is integer
f is float
n is float
t is boolean
n is boolean
t is true
n is true
t is false
nil is none
nil is not none
s is none
s is not none and n is defined
undefined_a is not defined
s is defined
n is eq 7
n is equalto 7
n is ne 7
n is gt 3
n is lt 3
n is ge 7
n is le 6
'a' is in ['a']
'z' is not in ['a']
'a' is in 'abc'
'ABC' is upper
'aBC' is upper
'abc' is lower
nil is sameas none
t is sameas true
s is callable
range is callable
not s is defined
not (n is odd)
s.strip is callable
spaces.strip()
spaces.lstrip()
spaces.rstrip()
[spaces.strip(), spaces.lstrip(), spaces.rstrip()]
'xxhixx'.strip('x')
'xyhiyx'.lstrip('xy')
'xyhiyx'.rstrip('xy')
'中a中'.strip('中')
s.strip(none)
s.split(', ')
s.split()
spaces.split()
spaces.split(' ')
'a,b,c'.split(',', 1)
'a b c'.split(none, 1)
' a b c '.split(maxsplit=1)
'a,b,c'.rsplit(',', 1)
'a b c'.rsplit(none, 1)
' a  b '.rsplit()
''.split()
''.split(',')
s.split('')
think.split('</think>')[-1].lstrip('\\n')
think.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n')
'</think>' in think
multi.splitlines()
multi.splitlines(true)
s.startswith('Hello')
s.endswith('World')
s.startswith(('x', 'H'))
s.endswith('x')
s.startswith('')
s.startswith(n)
s.upper()
s.lower()
s.title()
"they're bill's".title()
s.capitalize()
s.replace('l', 'L')
s.replace('l', 'L', 1)
s.find('o')
s.find('zz')
s.rfind('o')
uni.find('中')
s.index('o')
s.index('zz')
s.count('l')
s.count('')
', '.join(words)
', '.join(l)
'abcabc'.removeprefix('abc')
'abcabc'.removesuffix('bc')
l.index(2)
l.index(9)
l.count(1)
range(3)|list
range(1, 4)|list
range(5, 0, -2)|list
range(0)|list
range(3)[1]
range(3)|length
range(3)|first
range(3)|last
range(-1)|list
range(1, 2, 0)
dict(a=1, b='x')
dict({'a': 1}, b=2)
dict(d, name='y').name
namespace(a=1).a
namespace(a=1).b is defined
strftime_now is defined
raise_exception is defined
raise_exception('bad')
d.append
l.append(4)
d.update({'a': 1})
'' is defined
'a\\nb'
'a\\\\b'
"a\\"b"
'a\\'b'
'\\u4e2d\\U0001f600\\x41\\101'
'\\d\\.'
'<|im_start|>' + messages[0].role + '\\n'
('a' + 'b')|upper
'a' ~ 'b'|upper
'a' + 'b'|upper
-1|abs
n|string|length
l|first + 1
[1, 2,]
{'a': 1,}
1_000
1.5e3
.5
1 2
a b
(
'unclosed
x = 1
s | nofilter
s is notest
s.nomethod()
l[0](1)
n()
messages|map(attribute='content')|list|length
messages | map ( attribute = 'role' ) | first
{'a': {'b': {'c': 1}}}.a.b.c
{'a b': 1}['a b']
d['na' ~ 'me']
messages[n - 7].role
l[true]
l['0'] is defined
'%d' is string
none is none
none is defined
true is boolean
(1, 2)[0]
(s|safe) + '<&>"\\'' + 'x'
l|map('string')|last
nested|rejectattr('0')|list
[{'a': 1}, {'a': 0}]|rejectattr('a')|list
l|reject|list
s.endswith(('x', 'd'))
s.endswith(('x', 1))
s.startswith(l)
'{x}'.format(1)
{}.get(1, 2, 3)
'7'|int(default=1)
7 // -1
f - 1
2 - f
f ** 2
d[f] is defined
d[none] is defined
'upper' is filter
'nofilter' is filter
'odd' is test
'notest' is test
'a' is callable(1)
[d.missing]
f if f else 0
0.0 or 'zero'
[d.get] == [d.get]
d.get == d.items
s.strip == s.strip
[range]|length
(s|trim)(1)
(s|upper).lower()
{'a': range}|length
{1: 'a', 2: 'b'}
{1: 'a', 2: 'b'}[2]
{1: 'a'}[true]
{1: 'a'}['1'] is defined
{1: 'a'}|tojson
{2: 'a', 1: 'b'}|tojson(sort_keys=true)
{1: 'a', 'b': 2}|tojson(sort_keys=true)
{1: 'a'}.items()|list
{2: 'a', 1: 'b'}|dictsort
1 in {1: 'a'}
{1: 'a'}.get(1)
{1: 'a', 1: 'b'}
nil|selectattr('a')|list
nil|map('upper')|list
zero|select|list
n|select|list
'a{}b{}'.format(1, s)
'{1}{0}{x}{{}}'.format('a', 'b', x=n)
'{}'.format()
'{'.format(1)
(1, 2)|length
(1, 2)|list
1 in (1, 2)
'x' if d.missing is defined else 'y'
'x' if d.missing else 'y'
d.missing == none
d.missing != 'x'
d.b is none
d.b == none
not d.missing
d.missing|default(none) is none
messages|length > 1 and messages[0].role == 'system'
(messages|length) % 2 == 0
messages[0]['role'] in ['system', 'developer']
loop is defined
namespace is defined
tools is defined
s.items is defined
d.items() is mapping
d.items() is iterable
d is iterable and d is not mapping
[] is iterable
l is string or l is mapping
""".strip("\n").split("\n")

# Whole templates: statements, scopes and white space.
STATEMENTS = [
    "{% if t %}a{% endif %}b", "{% if zero %}a{% elif n %}b{% else %}c{% endif %}", "{% if zero %}a{% else %}c{% endif %}",
    "{% for x in l %}{{ x }},{% endfor %}", "{% for x in none_list %}a{% else %}none{% endfor %}",
    "{% for x in undefined_a %}a{% else %}none{% endfor %}", "{% for x in nil %}a{% endfor %}",
    "{% for x in n %}a{% endfor %}", "{% for c in 'aé中' %}[{{ c }}]{% endfor %}", "{% for k in d %}{{ k }} {% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k, v in d|items %}{{ k }}={{ v }};{% endfor %}",
    "{% for (k, v) in d.items() %}{{ k }};{% endfor %}", "{% for a, b in nested %}{{ a }}{% endfor %}",
    "{% for x in l if x > 1 %}{{ x }}{{ loop.index }}{{ loop.last }}{{ loop.length }} {% endfor %}",
    "{% for x in l if x > 9 %}{{ x }}{% else %}none{% endfor %}",
    "{% for m in messages if m.role != 'system' %}{{ loop.index0 }}{{ m.role }} {% endfor %}",
    "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }} {% endfor %}",
    "{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}",
    "{% for x in l %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }} {% endfor %}",
    "{% for x in l %}{{ loop.cycle('a', 'b') }}{% endfor %}", "{% for x in l %}{{ loop.nope is defined }}{% endfor %}",
    "{% for x in l %}{% for y in nested %}{{ loop.index }}{% endfor %}{{ loop.index }} {% endfor %}",
    "{% for x in l %}{% set outer = loop %}{% for y in [1, 2] %}{{ outer.index }}{{ loop.index }} {% endfor %}{% endfor %}",
    "{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}", "{% break %}",
    "{% for x in l %}{% for y in l %}{% break %}{% endfor %}{{ x }}{% endfor %}",
    "{% set x = 1 %}{% for y in l %}{% set x = x + y %}{{ x }} {% endfor %}{{ x }}",
    "{% set x = 1 %}{% if t %}{% set x = 2 %}{% endif %}{{ x }}", "{% if zero %}{% set x = 2 %}{% endif %}{{ x is defined }}",
    "{% for y in l %}{% set z = y %}{% endfor %}{{ z is defined }}{{ y is defined }}",
    "{% for y in l %}{% if loop.first %}{% set z = y %}{% endif %}{{ z is defined }} {% endfor %}",
    "{% set ns = namespace(x=1, y='a') %}{% for y in l %}{% set ns.x = ns.x + y %}{% endfor %}{{ ns.x }}{{ ns.y }}{{ ns.z is defined }}",
    "{% set ns = namespace() %}{% set ns.a = 1 %}{{ ns.a }}{{ ns['a'] }}", "{% set d.x = 1 %}", "{% set nope.x = 1 %}",
    "{% set ns = namespace(l=[]) %}{% for x in l %}{% set ns.l = ns.l + [x * 2] %}{% endfor %}{{ ns.l }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a, b = l %}{{ a }}", "{% set a = 1, 2 %}{{ a }}",
    "{% set x %}a {{ n }} b{% endset %}[{{ x }}]{{ x|length }}", "{% set x | upper %}a {{ s }}{% endset %}{{ x }}",
    "{% set x | trim | upper %}  a  {% endset %}[{{ x }}]",
    "{% set x %}{% set y = 1 %}{% endset %}{{ y is defined }}", "{% set x %}\n  {% if t %}\n  a\n  {% endif %}\n{% endset %}[{{ x }}]",
    "{% macro f(a, b=2) %}{{ a }}-{{ b }}{% endmacro %}{{ f(1) }} {{ f(1, 3) }} {{ f(b=4, a=5) }} {{ f() }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}", "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(c=2) }}",
    "{% macro f(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ f(1) }}",
    "{% macro f(n) %}{% if n > 0 %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(4) }}",
    "{% macro f() %}{{ x }}{% endmacro %}{% set x = 5 %}{{ f() }}",
    "{% set x = 5 %}{% macro f() %}{% set x = 6 %}{{ x }}{% endmacro %}{{ f() }}{{ x }}",
    "{% macro f() %}{{ s }}{{ y is defined }}{% endmacro %}{% for y in [1] %}{{ f() }}{% endfor %}",
    "{% macro f(x) %} {{ x }} {% endmacro %}[{{ f(1)|trim }}]{{ f(2)|length }}{{ f is callable }}",
    "{% macro f(x) %}{{ x.a is defined }}{% endmacro %}{{ f({'a': 1}) }}{{ f({}) }}",
    "{% if f is defined %}{% endif %}{% macro g() %}1{% endmacro %}{{ g() ~ g() }}",
    "{% generation %}a{% endgeneration %}b{% generation %}c{{ n }}{% endgeneration %}",
    "{% for m in messages %}{{ m.role }}:{% generation %}{{ m.content }}\n{% endgeneration %}\n{% endfor %}",
    "é{% generation %}ü{% endgeneration %}x", "{%- generation -%}  a  {%- endgeneration -%}  b",
    "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}",
    "{% for x in l %}{% generation %}{{ loop.index }}{{ x }}{% endgeneration %}{% endfor %}",
    "a\n{% if t %}\nb\n{% endif %}\nc", "a\n  {% if t %}\n  b\n  {% endif %}\nc", "a  {% if t %}  b  {% endif %}  c",
    "a\n  {%- if t -%}\n  b\n  {%- endif -%}\nc", "a\n  {%+ if t %}\nb{% endif %}", "a\n{% if t +%}\nb{% endif %}",
    "  {% if t %}a{% endif %}", "\n\n  {% if t %}a{% endif %}\n", "a\n", "a\n\n", "a\r\nb\r\n", "a\rb", "\n", "",
    "a {{ n }} b", "a\n {{ n }} \nb", "a {{- n -}} b", "a\n{{- n -}}\n b", "{{ n }}\n{{ n }}\n", " {{+ n }}",
    "a{# c #}b", "a\n  {# c #}\nb", "a {#- c -#} b", "a\n  {#- c #}\nb", "a{# {{ n }} {% if %} #}b", "a{# c\nd #}\n\nb", "a{#-#}b", "{# open",
    "{% raw %}{{ n }}{% if %}{% endraw %}b", "a {%- raw -%} {{ n }} {%- endraw -%} b", "a\n  {% raw %}\n x\n  {% endraw %}\nb", 
    "a\n\t{% set x = 1 %}\n\n{{ x }}", "{% set x = 1 %}\n{% set y = 2 %}\n{{ x }}{{ y }}", "{% set x = 1 -%}\n\n {{ x }}",
    "a\u00a0\n\u00a0{% if t %}b{% endif %}", "a \u2003{%- if t %}b{% endif -%} \u3000c", "{%if t%}x{%endif%}", "{{n}}", "{{'}}'}}", "{{ '%}' }}",
    "{% if '%}' == '%}' %}a{% endif %}", "{{ {'a': {'b': 1}}['a']['b'] }}", "{{ {'a': {}} }}", "{ { n } }", "a { b }} c %} d #}", "{{ n }", "{% if t %}",
    "{% endif %}", "{% else %}", "{% if t %}{% endfor %}", "{% nope %}", "{% for x l %}{% endfor %}", "{% if %}a{% endif %}", "{{ }}", "{{ n n }}",
    "{% include 'x' %}", "{% extends 'x' %}", "{% do l.append(1) %}", "{% set true = 1 %}",
    "{% if t %}{% if zero %}a{% else %}b{% endif %}{% endif %}", "{% if messages[0].role == 'system' %}{% set sys = messages[0].content %}{% set messages = messages[1:] %}{% endif %}{{ sys }}{{ messages|length }}",
    "{% for message in messages %}{% if loop.index0 == 0 and message['role'] != 'system' %}x{% endif %}{{ '<|' ~ message['role'] ~ '|>' + message['content'] }}{% endfor %}",
    "{% set i = namespace(last=messages|length - 1, multi=true) %}{% for m in messages[::-1] %}{% set index = (messages|length - 1) - loop.index0 %}{% if i.multi and m.role == 'user' %}{% set i.multi = false %}{% set i.last = index %}{% endif %}{% endfor %}{{ i.last }}",
    "{% for m in messages|reverse %}{{ m.role[0] }}{% endfor %}", "{% for x in range(2) %}{{ x }}{% endfor %}",
    "{% for m in messages %}{{ m.role }}{% if not loop.last %}, {% endif %}{% endfor %}",
    "{% for a in messages|map(attribute='role')|unique %}{{ a }} {% endfor %}", "{{ raise_exception('a\\nb') }}",
    "{% if strftime_now is defined %}{{ strftime_now('%d %b %Y|%B|%H:%M:%S|%A %a|%y|%j|%p|%I|%-d|%%|%m') }}{% endif %}",
    "{% set f = d.get %}{{ f('name') }}", "{% set x = l|map('string') %}{{ x|join }}", "{{ loop }}",
    "{% set dict_ = {'a': 1} %}{% for k in dict_ %}{{ dict_[k] }}{% endfor %}", "{% set self = 1 %}{{ n }}", "{{ n if t else }}",
    "{% for x in l %}{{ loop == loop }}{{ [loop]|length }}{% endfor %}", "{{", "{{ 1 +", "{% set x = [range] %}{{ x[0](2)|list }}",
    "{% if t -%}\n a {%- elif n -%} b {%- endif %}", "{% for x in l -%} {{ x }} {%- else -%} none {%- endfor %}",
    "{% for i in range(3) %}{% set x = i %}{{ x }}{% endfor %}{{ i is defined }}", "{% set loop = 5 %}{{ loop }}",
]
