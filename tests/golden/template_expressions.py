"""Small templates whose expected outputs come from jinja2 (see make_templates.py)."""

VARIABLES = {
    "s": "Hello, World",
    "u": "Größe ΑΣ ﬁn İ 日本",
    "empty": "",
    "spaces": "  a b\t c \n",
    "lines": "one\ntwo\r\nthree\n\nfive",
    "n": 7,
    "neg": -3,
    "f": 2.5,
    "big": 9007199254740993,
    "zero": 0,
    "yes": True,
    "no": False,
    "nothing": None,
    "list": [3, 1, 2],
    "words": ["pear", "Apple", "fig", "apple"],
    "nested": [[1, 2], [3, [4, 5]]],
    "d": {"b": 1, "a": [1, 2.0, "x"], "C": None, "items_": {"k": "v"}},
    "people": [
        {"name": "Ann", "age": 31, "tags": ["x"]},
        {"name": "bob", "age": 25, "tags": []},
        {"name": "Cid", "age": 31},
    ],
    "quote": "it's \"q\" \\ \n é \x07 \u2028",
    "html": "<a href=\"x\">&'</a>",
    "json": {"t": True, "n": None, "f": 1e16, "g": 1.5e-7, "i": -0.0, "s": "é\"\\\n\x01/", "l": [], "o": {}},
}

EXPRESSIONS = """
1|1 + 2 * 3|7 // 2|-7 // 2|7 % 3|-7 % 3|7 / 2|6 / 3|2 ** 10|2 ** -1|2 ** 0.5|1 / 0|1 // 0|1 % 0|1.0 // 0.3|-7.5 % 2
7.5 // 2|-7.5 // 2|1e3|1.5e-7|1e16|123456789012345680.0|0.1 + 0.2|1e22|1e300 * 1e10|-0.0|0x1f|0b101|0o17|1_000
2 ** 62 + 2 ** 62|-2 ** 2|-(2)|+5|- 5 + 3|not true|not none or 1|1 and 0|0 or 'x'|'' or []
1 < 2 < 3|1 < 3 < 2|1 == 1.0|true == 1|'a' < 'b'|'a' < 1|[1, 2] < [1, 3]|(1, 2) == (1, 2)|(1, 2) == [1, 2]
none == none|none < 1|1 in [1, 2]|'ell' in 'hello'|1 in 'x'|'k' in {'k': 1}|1 not in [2]|'x' not in 'abc'|2 in (1, 2)
'a' ~ 1 ~ none ~ true ~ 1.5|'a' + 'b'|'a' + 1|1 + 'a'|'ab' * 3|3 * 'ab'|[1] * 3|[1] + [2]|(1,) + (2,)|[1] + (2,)|'x' * -1
'%s and %d' % ('a', 3)|'%05.2f|%x|%%' % (3.14159, 255)|'%r' % 'x'|'%s' % [1]|'%s %s' % 'x'|'%d' % 'x'|'%-5s|' % 'ab'|'%5d' % 42
'%(a)s' % {'a': 1}|'%e' % 12345.678|'%g' % 0.0001|'%c' % 65|'%+d' % 5|'%i' % 3.7
true|false|none|True|False|None|'a' 'b'|"q\\"q"|'\\n\\t\\x41\\u00e9\\101\\q'|[]|{}|()|(1,)|(1, 2)|[1, 'a', none, true, 1.0]
{'a': 1, 'b': [1, {'c': 2}]}|{1: 'x', none: 2}|{'a': 1, 'a': 2}|'x' if true else 'y'|'x' if false|('x' if false) is defined
1 if 0 else 2 if 0 else 3|undefined_name|undefined_name.x|undefined_name['x']|undefined_name + 1|undefined_name ~ 'x'
undefined_name is defined|undefined_name == undefined_other|undefined_name == none|undefined_name or 'd'|undefined_name()
undefined_name < 1|1 in undefined_name|undefined_name in [1]|-undefined_name|undefined_name[1:]|not undefined_name
d.b|d['b']|d.missing|d.missing.x|d['missing']|d.items_.k|d.a[1]|d.a[-1]|d.a[9]|d.a.1|list[0]|list['x']|list.x|s[0]|s[-1]
s[99]|u[0:3]|u[2]|u[-2:]|u[::-1]|s[1:4]|s[:5]|s[7:]|s[::2]|s[::-1]|s[10:2:-2]|list[1:]|list[::-1]|list[:-1]|list[::0]
list[100:]|s[-100:3]|n[0]|none.x|none['x']|n.x|f.x|(1, 2, 3)[1:]|range(5)|range(5)[2]|range(2, 10, 3) + [1]|nested[1][1][0]
s.upper()|s.lower()|s.title()|s.capitalize()|s.swapcase()|u.upper()|u.lower()|u.title()|u.capitalize()|'ΟΔΟΣ'.lower()|'ß'.upper()
spaces.strip()|spaces.lstrip()|spaces.rstrip()|'xxaxx'.strip('x')|'abcXcba'.strip('abc')|'a,b,c'.split(',')|'a,b,c'.split(',', 1)
spaces.split()|'a b  c'.split(' ')|'a b c'.split(none, 1)|'a b c'.rsplit(none, 1)|'a,b,c'.rsplit(',', 1)|''.split()|''.split(',')
'a'.split('')|lines.splitlines()|lines.splitlines(true)|'abc'.startswith('ab')|'abc'.startswith(('x', 'a'))|'abc'.endswith('bc')
'abc'.startswith('b', 1)|'abc'.endswith('b', 0, 2)|'abc'.find('c')|'abc'.find('x')|'abcabc'.rfind('b')|'abc'.index('x')
'é日é'.find('é', 1)|'aaa'.count('a')|'aaa'.count('')|'abab'.count('ab')|'abc'.replace('b', 'XX')|'aaa'.replace('a', 'b', 2)
'abc'.replace('', '-')|'abc'.replace('x', 'y')|','.join(['a', 'b'])|','.join([1])|''.join([])|'-'.join('abc')|'{} {}'.format(1, 'x')
'{0}{1}{0}'.format('a', 'b')|'{x:>5}|{y:<4}|{z:^6}|'.format(x='a', y='b', z='c')|'{:.2f}'.format(3.14159)|'{:05d}'.format(42)
'{:,}'.format(1234567)|'{!r}'.format('a')|'{a.b}'.format(a=d)|'{a[b]}'.format(a=d)|'{'.format()|'{}'.format()|'{{}}'.format()
'{:x} {:#x} {:b}'.format(255, 255, 5)|'{:.3}'.format('abcdef')|'{:%}'.format(0.5)|'{:e}'.format(1234.5)|'{:+}'.format(3)
'abc'.removeprefix('a')|'abc'.removesuffix('c')|'a-b-c'.partition('-')|'a-b-c'.rpartition('-')|'abc'.partition('x')
'7'.zfill(3)|'-7'.zfill(4)|'ab'.center(7, '*')|'ab'.ljust(4, '.')|'ab'.rjust(4)|'abc'.isalpha()|'123'.isdigit()|'a1'.isalnum()
' '.isspace()|''.isspace()|'Ab'.isupper()|'AB1'.isupper()|'ab'.islower()|'a\\tb'.expandtabs(4)|s.nope|s.nope()|'é'.isascii()
d.keys()|d.values()|d.items()|d.get('b')|d.get('z')|d.get('z', 9)|d.keys()|list|d|length|d.items()|list|{'a': 1}.items()
{'a': {'b': 1}}.a.b|{'get': 1}.get|{'get': 1}['get']|d.get|list.index(1)|list.count(1)|list.index(99)|(1, 2).index(2)
list|length|s|length|u|length|d|length|empty|length|nothing|length|n|length|range(3)|length|undefined_name|length
list|join|list|join(', ')|words|join('-')|people|join(', ', attribute='name')|people|join(attribute='name')|u|join('.')
list|first|list|last|empty|first|[]|first|[]|last|s|first|s|last|list|reverse|list|s|reverse|words|reverse|join
list|sort|words|sort|words|sort(case_sensitive=true)|words|sort(reverse=true)|people|sort(attribute='age')|map(attribute='name')|list
people|sort(attribute='age,name', reverse=true)|map(attribute='name')|join|[1, 'a']|sort|list|sum|people|sum('age')|[0.1, 0.2]|sum
['a']|sum|list|min|list|max|words|min|[]|max|people|max(attribute='age')|words|unique|list|list|unique|list
[1, 1.0, true]|unique|list|people|groupby('age')|list|length|people|groupby('age')|map('first')|list|people|groupby('age')|map(attribute='list')|map('length')|list
people|map(attribute='name')|list|people|map(attribute='zip', default='-')|list|people|map(attribute='tags.0')|list|words|map('upper')|list
words|map('replace', 'p', 'q')|list|list|map('string')|join|words|map('nope')|list|words|map|list|list|select('odd')|list
list|select('gt', 1)|list|list|reject('equalto', 1)|list|[0, 1, '', 'a', none]|select|list|[0, 1]|reject|list|people|selectattr('age', 'equalto', 31)|map(attribute='name')|list
people|selectattr('tags')|list|length|people|rejectattr('tags', 'defined')|map(attribute='name')|list|people|selectattr('name', 'in', ['Ann'])|list|length
people|selectattr('age', 'nope')|list|list|batch(2)|list|list|batch(2, 'x')|list|list|slice(2)|list|range(7)|slice(3, 'f')|list
d|dictsort|d|dictsort(true)|d|dictsort(reverse=true)|{'x': 2, 'y': 1}|dictsort(by='value')|{'x': 2}|dictsort(by='z')|d|items|list|undefined_name|items|list
n|items|list|d|list|s|list|n|list|nothing|list|undefined_name|list|n|string|nothing|string|list|string|d|string|undefined_name|string
'12'|int|' 12 '|int|'12.7'|int|'x'|int|'x'|int(5)|'ff'|int(0, 16)|'0x1f'|int(0, 16)|none|int|3.9|int|-3.9|int|true|int|'1_0'|int
'1e3'|int|undefined_name|int|'1.5'|float|'x'|float|'x'|float(1)|'inf'|float|1|float|none|float|'nan'|float|'1e400'|float|' 2.50 '|float
-5|abs|neg|abs|f|abs|'x'|abs|2.5|round|3.5|round|2.675|round(2)|42.55|round(1, 'floor')|42.51|round(1, 'ceil')|7|round|7|round(-1)|1234.5|round(-2)|2.5|round(0, 'x')
nothing|default('d')|undefined_name|default('d')|undefined_name|default|empty|default('d')|empty|default('d', true)|false|d('x', true)|undefined_name|d(boolean=true)
undefined_name.x|default('y')|d.missing|default('y')|d.missing.x|default('y')
s|upper|s|lower|s|title|'foo-bar (baz)'|title|"it's"|title|s|capitalize|n|upper|nothing|upper|s|trim|spaces|trim|'xxaxx'|trim('x')|n|trim
s|replace('o', '0')|s|replace('o', '0', 1)|s|replace('', '.')|n|replace(7, 8)|lines|indent|lines|indent(2, true)|lines|indent(2, blank=true)|lines|indent('> ', true, true)
''|indent|s|indent(first=true)|n|indent|s|truncate(5)|s|truncate(5, true)|s|truncate(8, false, '..', 0)|s|truncate(11)|s|truncate(1)|s|wordcount|u|wordcount|s|center(20)
'%s|%s'|format(1, 'a')|'%(x)s'|format(x=3)|html|escape|html|e|html|safe|html|safe|escape|html|escape|escape|(html|safe) + '<'|'<' + (html|safe)|(html|safe) ~ '<'
(html|e)|upper|(html|e)|replace('&', '#')|('<'|safe) * 2|('<'|safe).join(['<', 'a'])|d|attr('b')|s|attr('upper')|n|forceescape_nope
json|tojson|json|tojson(indent=2)|json|tojson(ensure_ascii=true)|json|tojson(separators=(',', ':'))|json|tojson(sort_keys=true)|json|tojson(indent=0)|json|tojson(indent='\\t')
u|tojson|u|tojson(ensure_ascii=true)|'😀'|tojson(true)|html|tojson|quote|tojson|nothing|tojson|f|tojson|big|tojson|list|tojson|list|tojson(indent=4)|[]|tojson(indent=2)|(1, 2)|tojson
{1: 2, none: 3, true: 4, 1.5: 5}|tojson|{(1, 2): 3}|tojson|undefined_name|tojson|range(2)|tojson|[undefined_name]|tojson|d.items()|tojson|{'b': 1, 'a': 2}|tojson(sort_keys=true)|{'b': 1, 1: 2}|tojson(sort_keys=true)
quote|[quote]|[u]|{'k': quote}|[1.0, 1e100, 1e-5, 100000.0]|['\\x00\\x7f\\xa0\\u200b']|[html|safe]|words|string|d|nested|big|f|json|people|{'a': (1,)}
n is number|f is number|yes is number|s is number|n is integer|yes is integer|f is float|yes is boolean|n is boolean|s is string|d is mapping|list is mapping
list is sequence|s is sequence|d is sequence|n is sequence|list is iterable|n is iterable|d.items() is sequence|d.items() is iterable|undefined_name is iterable
undefined_name is sequence|undefined_name is none|nothing is none|nothing is defined|yes is true|no is false|1 is true|0 is false|n is odd|n is even|8 is divisibleby 4
8 is divisibleby(3)|n is eq 7|n is equalto(7)|n is ne 7|n is lt 8|n is gt 8|n is ge 7|n is le 6|n is == 7|n is in [7]|'a' is in 'abc'|s is upper|'ABC' is upper|'abc' is lower
n is sameas n|nothing is sameas none|yes is sameas true|1 is sameas true|s is callable|range is callable|s.upper is callable|undefined_name is callable|'upper' is filter|'odd' is test
n is not number|n is not odd|not n is odd|n is number and s is string|n is number or x|n is number if yes else 2|s is nope|s is not defined|d.x is not defined|n is string is true
namespace(a=1).a|namespace({'a': 1}, b=2).b|namespace().x|dict(a=1, b=2)|dict({'a': 1}, b=2)|dict([('a', 1)])|range(3)|list|range(0)|list|range(5, 0, -2)|list|range(1000000)|range(1, 2, 0)
raise_exception('x')|strftime_now('%Y-%m-%d %H:%M')|strftime_now('%d %b %Y')|strftime_now('')|cycler('a', 'b').next()|cycler()|joiner()()|s()|n()|none()|lipsum_nope()
[1, 2,]|{'a': 1,}|[1, 2|(1|{'a' 1}|a b|1 +|'unclosed|d.|d[|s|nope|'x'|s|upper()|s | upper | lower|-1|abs|(-1)|abs|1.5.x|'a'.upper().lower()|"a" if s|length > 3 else "b"
(1, 2)|length|1, 2|1,|s.upper()[0]|s.split(', ')[1].upper()|[[1, 2], [3]]|map('length')|list|[[1, 2], [3]]|map('join', '-')|list|people|map(attribute='name')|map('upper')|join(' ')
people|length == 3|not people|length|people[0].name ~ people[-1]['name']|people[0].tags[0]|people[2].tags|people[2].tags|length|d.a|map('string')|list|[d, d]|length|1 == 1 and 2 == 3
1 if true else undefined_name.x|undefined_name.x if false else 2|true or undefined_name.x|false and undefined_name.x|[1, 2][0:1][0]|{'a': [1, {'b': 'x'}]}['a'][1]['b']|s[0:n-2]|list[zero]
'a' == "a"|'é' == 'e\\u0301'|'a' * 3 ~ 'b'|1 ~ 2 + 3|'a' + 'b' ~ 'c'|2 * 3 ~ 'x'|1 + 2 ~ 3 + 4|2 ** 3 ** 2|-2|abs|1 - -1|not 1 == 2|1 in [1] and 2 in [1]|(1 in [1]) == true|1 in [1] == true
list.append(4)|words.pop()|{'a': 1}.pop('a')|{'a': 1}.update({'b': 2})|[1, 2].extend([3])|[3, 1].insert(0, 2)|[1, 2].reverse()|[1].clear()|{}.setdefault('a', 1)|list.__class__|s.__len__|''.__class__.__mro__
"""

STATEMENTS = [
    "{% if yes %}a{% else %}b{% endif %}",
    "{% if no %}a{% elif n == 7 %}b{% else %}c{% endif %}",
    "{% if no %}a{% elif no %}b{% endif %}.",
    "{% if undefined_name %}a{% endif %}x\n",
    "  {% if yes %}  \n  a\n  {% endif %}\nb",
    "x {% if yes %} y {% endif %} z",
    "x\n  {%- if yes -%}\n y \n{%- endif -%}\n z",
    "x\n  {%+ if yes +%}\n y \n{% endif %}\n z",
    "a\n    {# comment #}\n  b {# c -#}  \n d {#- e #} f",
    "a {#- x -#} b",
    "{{- s -}}  x  {{ s -}}   y",
    "  {{ s }}\n  {{ s }}\n",
    "{{ s }}\n\n",
    "\n\n{{ s }}",
    "a\r\nb\rc{{ '\r\n' }}",
    "{% raw %}{{ x }}{% endraw %}",
    "a\n  {% raw %}\n  {{ x }} {% if %}\n  {% endraw %}\nb",
    "a {%- raw -%}  {{ x }}  {%- endraw -%} b",
    "{% raw %}x",
    "{# unclosed",
    "{{ 1",
    "{% if 1 %}",
    "{% endif %}",
    "{% nope %}",
    "{% for %}{% endfor %}",
    "{% set %}",
    "{{ }}",
    "{{ {'a': {'b': 1}} }}",
    "{{ {'a': {'b': 1}}}}",
    "{% for x in list %}{{ x }},{% endfor %}",
    "{% for x in list %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }};{% endfor %}",
    "{% for x in list %}{{ loop.previtem }}-{{ loop.nextitem }} {{ loop.previtem is defined }}{{ loop.nextitem is undefined }};{% endfor %}",
    "{% for x in list %}{{ loop.cycle('a', 'b') }}{{ loop.changed(x > 1) }}{% endfor %}",
    "{% for x in [] %}{{ x }}{% else %}none{% endfor %}",
    "{% for x in list if x > 1 %}{{ x }}{{ loop.index }}/{{ loop.length }} {% endfor %}",
    "{% for x in list if x > 5 %}{{ x }}{% else %}none{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in d|items %}{{ k }}={{ v }};{% endfor %}",
    "{% for k in d %}{{ k }}{% endfor %}",
    "{% for k, v in d|dictsort %}{{ k }}{% endfor %}",
    "{% for a, b in [(1, 2), [3, 4]] %}{{ a + b }}{% endfor %}",
    "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for a, b in [(1, 2, 3)] %}{{ a }}{% endfor %}",
    "{% for a, b in ['xy'] %}{{ a }}{{ b }}{% endfor %}",
    "{% for c in u %}{{ c }}|{% endfor %}",
    "{% for x in n %}{% endfor %}",
    "{% for x in nothing %}{% endfor %}",
    "{% for x in undefined_name %}a{% else %}b{% endfor %}",
    "{% for x in range(10) %}{% if x == 5 %}{% break %}{% endif %}{% if x is odd %}{% continue %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in list %}{% for y in list %}{% if y == x %}{% break %}{% endif %}{{ y }}{% else %}e{% endfor %}{{ loop.index }};{% endfor %}",
    "{% break %}",
    "{% for x in list %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}",
    "{% for x in list %}{% set y %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endset %}{{ y }}{% endfor %}",
    "{% set x = 1 %}{% for i in list %}{% set x = x + i %}{{ x }},{% endfor %}{{ x }}",
    "{% set x = 1 %}{% if yes %}{% set x = 2 %}{% endif %}{{ x }}",
    "{% for i in list %}{% set z = i %}{% endfor %}{{ z is defined }}",
    "{% for i in list %}{{ z is defined }}{% set z = i %}{% endfor %}",
    "{% set ns = namespace(x=0) %}{% for i in list %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}",
    "{% set ns = namespace() %}{% set ns.a, b = 1, 2 %}{{ ns.a }}{{ b }}",
    "{% set d.x = 1 %}",
    "{% set undefined_ns.x = 1 %}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}",
    "{% set a, b = 1 %}",
    "{% set a = b = 1 %}",
    "{% set t = 1, 2 %}{{ t }}",
    "{% set x %}a{{ s }}b{% endset %}{{ x|upper }}",
    "{% set x | upper | replace('A', '_') %}a{{ s }}b{% endset %}{{ x }}",
    "{% set x %}{% set inner = 1 %}{% endset %}{{ inner is defined }}",
    "{% set true = 1 %}",
    "{% set x = s %}{{ x }}{% set s = 'changed' %}{{ s }}",
    "{% macro m(a, b=2, c='x') %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(1, c=4) }}{{ m() }}{{ m(a=9) }}",
    "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(a) %}{% endmacro %}{{ m(b=2) }}",
    "{% macro m(a) %}{% endmacro %}{{ m(1, a=2) }}",
    "{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, x=4) }}",
    "{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}",
    "{% macro m(a=1, b) %}{% endmacro %}",
    "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}",
    "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "{% set g = 1 %}{% macro m() %}{{ g }}{% endmacro %}{% set g = 2 %}{{ m() }}",
    "{% macro m() %}{% set q = 5 %}{% endmacro %}{{ m() }}{{ q is defined }}",
    "{% macro m() %}  x  {% endmacro %}[{{ m()|trim }}]{{ m is callable }}",
    "{{ m() }}{% macro m() %}x{% endmacro %}",
    "{% for i in list %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}",
    "{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}in{{ s }}{% endcall %}",
    "{% macro m() %}<{{ caller(1, 2) }}>{% endmacro %}{% call(a, b) m() %}{{ a }}{{ b }}{% endcall %}",
    "{% macro m() %}x{% endmacro %}{% call m() %}in{% endcall %}",
    "{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}",
    "{% call s %}x{% endcall %}",
    "{% macro m(x) %}{{ x }}{% endmacro %}{{ m(*[1]) }}{{ m(**{'x': 2}) }}",
    "{% macro m() %}{% endmacro %}{{ m.name }}",
    "{% filter upper %}abc{{ s }}{% endfilter %}",
    "{% filter replace('a', 'b') | upper %}abc{% endfilter %}",
    "{% with x = 1, y = 2 %}{{ x + y }}{% endwith %}{{ x is defined }}",
    "{% with %}{% set x = 1 %}{{ x }}{% endwith %}{{ x is defined }}",
    "{% with x = n, y = x %}{{ y is defined }}{% endwith %}",
    "{% generation %}a{{ s }}{% endgeneration %}",
    "{% generation %}{% set x = 1 %}{% endgeneration %}{{ x is defined }}",
    "{% for x in list %}{% generation %}{% break %}{% endgeneration %}{% endfor %}",
    "{% print 1 + 1 %}",
    "{% print 'a', 'b' %}",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ c.current }}",
    "{% set j = joiner(', ') %}{% for x in list %}{{ j() }}{{ x }}{% endfor %}",
    "{% set l = [] %}{% for x in list %}{{ l.append(x) or '' }}{% endfor %}{{ l }}",
    "{% set l = [1, 2] %}{% set _ = l.pop(0) %}{{ l }}",
    "{% set d2 = {'a': 1} %}{% set _ = d2.update(b=2) %}{{ d2 }}",
    "{% if nope|nope_filter %}x{% endif %}",
    "{% if no %}{{ s|nope_filter }}{% endif %}ok",
    "{{ (s|nope_filter) if no else 'ok' }}",
    "{% macro m() %}{{ s|nope_filter }}{% endmacro %}ok",
    "{% for x in [] %}{{ s is nope_test }}{% endfor %}ok",
    "{% for g, items in people|groupby('age') %}{{ g }}:{{ items|length }};{% endfor %}",
    "{% for g in people|groupby('age') %}{{ g.grouper }}:{{ g.list|length }};{% endfor %}",
    "{% set it = words|map('upper') %}{{ it|list }}{{ it|list }}",
    "{{ words|map('upper')|length }}",
    "{{ words|map('upper')|first }}",
    "{% for x in words|map('upper') %}{{ loop.length }}{% endfor %}",
    "{{ 'a' if words|select('equalto', 'zzz') else 'b' }}",
    "{{ loop is defined }}{% for x in [1] %}{{ loop is defined }}{% endfor %}",
    "{% for loop in [1] %}{% endfor %}",
    "{% for x in list %}{% endfor %}{{ x is defined }}",
    "{% for x in list -%}\n   {{ x }}\n{%- endfor %}",
    "{%- for x in list %}\n    {{- x }}\n{% endfor %}",
    "{% for item in people %}\n  {% if item.tags is defined and item.tags %}\n    {{ item.name }}\n  {% endif %}\n{% endfor %}\nend",
    "{% set messages = [{'role': 'user'}] + [{'role': 'x'}] %}{{ messages[1:] }}{{ messages[-1].role }}",
    "{% set x = 'a' %}{% set x = x ~ 'b' %}{% set x = x + 'c' %}{{ x }}",
    "{{ '{{' }}{{ '}}' }}{{ \"%}\" }}",
    "{{ '\\'' }}{{ \"\\\"\" }}{{ 'a\\\\nb' }}",
    "{% if s.startswith('He') and not s.endswith('x') %}y{% endif %}",
    "{%if yes%}a{%endif%}{{n}}{{-n-}}",
    "{% if (n > 5) and (n < 10) or no %}y{% endif %}",
    "{% if n in [1, 7] %}y{% endif %}{% if 'x' not in s %}z{% endif %}",
    "{% include 'x' %}",
    "{% import 'x' as y %}",
    "{% from 'x' import y %}",
    "{% extends 'x' %}",
    "{% do list.append(1) %}",
    "{{ caller }}{{ varargs is defined }}",
    "{{ none }}{{ nothing }}{{ [none] }}",
    "{{ x if x is defined else 'd' }}",
    "{% set x = x if x is defined else 'd' %}{{ x }}",
    "{% if not x is defined %}{% set x = 'd' %}{% endif %}{{ x }}",
]



def cases():
    """Pairs of a template and whether an error is an answer worth keeping. The lines of EXPRESSIONS separate with '|',
    which filters use too, so neighbours are also tried glued together; those that jinja2 refuses are dropped."""
    found = {}
    for line in EXPRESSIONS.strip().split("\n"):
        parts = line.split("|")
        for part in parts:
            found["{{ " + part + " }}"] = True
        for index in range(len(parts)):
            for count in (2, 3, 4, 5):
                if index + count <= len(parts):
                    found.setdefault("{{ " + "|".join(parts[index : index + count]) + " }}", False)
    for statement in STATEMENTS:
        found[statement] = True
    return found.items()
