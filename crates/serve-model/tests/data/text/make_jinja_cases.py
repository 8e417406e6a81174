#!/usr/bin/env python3
"""Write jinja_cases.json: small templates and what Jinja2, set up as in transformers, makes of them.

    python3 make_jinja_cases.py OUT.json

Needs jinja2. Each case has a template and either the text that it renders to, or `raised` (what it said
through raise_exception), or `error: true`. All of them see the same variables, which are in the file.
"""

import json
import sys

from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

VARIABLES = {
    "s": "Hello, Wörld! ",
    "empty": "",
    "n": 3,
    "x": 2.5,
    "tiny": 1e-7,
    "big": 1e22,
    "yes": True,
    "no": False,
    "nothing": None,
    "items": ["b", "a", "c"],
    "nested": {"z": 1, "a": [True, None, "it's", "q\"q", "é\n"], "m": {"k": 0.1}},
    "people": [{"name": "Ada", "age": 36}, {"name": "Bob", "age": 20}, {"name": "Cy"}],
    "html": "<a href='x'>&amp;</a>",
    "think": "<think>\nhm\n</think>\n\nanswer",
    "emoji": "a👋b",
}

TEMPLATES = [
    # what is shown
    "{{ yes }} {{ no }} {{ nothing }} {{ n }} {{ x }} {{ tiny }} {{ big }}",
    "[{{ missing }}] [{{ people[2].age }}] [{{ items[9] }}]",
    "{{ items }} {{ nested }} {{ people[0] }}",
    "{{ html }} {{ html|safe }} {{ 'a' ~ n ~ yes ~ nothing }}",
    "{{ html|e }}",
    "{{ x|string }} {{ nothing|string }} {{ items|string }}",
    "{{ 7 / 2 }} {{ 8 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ 2 ** 5 }}",
    "{{ 'ab' * 3 }} {{ [1] + [2] }}",
    "{{ \"tab\\tnl\\n\" }}{{ 'it\\'s' }}|",
    # JSON
    "{{ nested|tojson }}",
    "{{ nested|tojson(indent=2) }}",
    "{{ nested|tojson(ensure_ascii=True) }} {{ emoji|tojson(ensure_ascii=true) }}",
    "{{ nested|tojson(sort_keys=true) }}",
    "{{ nested|tojson(separators=(',', ':')) }}",
    "{{ nested|tojson(indent=4, separators=(',', ': '), sort_keys=true) }}",
    "{{ [] | tojson }} {{ {} | tojson }} {{ [[], {}] | tojson(indent=1) }}",
    "{{ html|tojson }} {{ s|tojson }} {{ nothing|tojson }} {{ tiny|tojson }} {{ big|tojson }} {{ 1.0|tojson }}",
    "{{ '\\x01\\x1f\\x7f/\\u2028' | tojson }}",
    "{{ missing|tojson }}",
    # undefined and none
    "{% if missing %}a{% else %}b{% endif %}{% for i in missing %}x{% endfor %}",
    "{{ missing is defined }} {{ missing is none }} {{ nothing is none }} {{ nothing is defined }}",
    "{{ missing.attribute }}",
    "{{ 'a' + missing }}",
    "{{ 'a' + nothing }}",
    "{{ 'a' + 1 }}",
    "{{ people[2].age is defined }} {{ people[2]['age'] is undefined }} {{ people[0].name is string }}",
    "{{ missing|default('d') }} {{ nothing|default('d') }} {{ nothing|default('d', true) }} {{ empty or 'e' }}",
    "{{ missing|length }}",
    "{{ nothing|length }}",
    "{{ 'x' in missing }}",
    "{{ nothing.attribute }}|",
    # tests
    "{{ n is number }} {{ x is float }} {{ n is integer }} {{ items is sequence }} {{ nested is mapping }} {{ s is iterable }}",
    "{{ yes is true }} {{ no is false }} {{ yes is boolean }} {{ n is true }} {{ s is not string }} {{ s is sequence }}",
    "{{ 'a' in items }} {{ 'z' in nested }} {{ 'Hello' in s }} {{ 'q' not in items }} {{ n is odd }} {{ n is divisibleby 3 }}",
    "{{ 'a' is in items }} {{ n is eq 3 }} {{ n is gt 2 }} {{ items is callable }}",
    "{{ nested is sequence }} {{ n is sequence }} {{ range is callable }} {{ '12'.isalpha() }} {{ s is lower }} {{ items is iterable }}",
    # slices and indices
    "{{ items[::-1] }} {{ items[1:] }} {{ items[:-1] }} {{ items[-1] }} {{ s[:5] }} {{ s[::-1] }} {{ s[0] }} {{ emoji[1] }}",
    "{{ items[0:2] | join('+') }} {{ items[::2] }} {{ items[5:] }}",
    # loops
    "{% for i in items %}{{ loop.index0 }}{{ loop.index }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }};{% endfor %}",
    "{% for i in items %}{% if i == 'a' %}{% continue %}{% endif %}{{ i }}{% if i == 'c' %}{% break %}{% endif %}{% endfor %}",
    "{% for p in people if p.age is defined %}{{ p.name }}{% else %}none{% endfor %}",
    "{% for k, v in nested.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k in nested %}{{ k }}{% endfor %} {{ nested.keys()|list }} {{ nested.values()|list }}",
    "{% for k, v in nested|items %}{{ k }}{% endfor %} {% for k, v in nested|dictsort %}{{ k }}{% endfor %}",
    "{% for i in range(2, 8, 2) %}{{ i }}{{ loop.previtem }}{{ loop.nextitem }} {% endfor %}{{ range(3)|list }}",
    "{% for c in 'abc' %}{{ loop.cycle('x', 'y') }}{{ c }}{% endfor %}",
    "{% set ns = namespace(found=false, n=0) %}{% for i in items %}{% set ns.n = ns.n + 1 %}{% if i == 'a' %}{% set ns.found = true %}{% endif %}{% endfor %}{{ ns.found }} {{ ns.n }}",
    "{% set a = 1 %}{% for i in items %}{% set a = 2 %}{% endfor %}{{ a }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set block %}x{{ n }}y{% endset %}{{ block|upper }}",
    # macros and blocks
    "{% macro m(a, b='d') %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}{{ m(2, b=3) }}{{ m('x')|trim }}",
    "{%- macro rec(v) -%}{%- if v is mapping -%}{{ '{' }}{%- for k in v -%}{{ k }}:{{ rec(v[k]) }},{%- endfor -%}{{ '}' }}{%- else -%}{{ v }}{%- endif -%}{%- endmacro -%}{{ rec(nested) }}",
    "{% filter upper %}abc{{ n }}{% endfilter %}{% with q = 5 %}{{ q }}{% endwith %}",
    # white space
    "a\n{% if yes %}\nb\n{% endif %}\nc\n",
    "a\n    {% if yes %}\n  b\n    {%- endif %}\n\nc\n\n",
    "  {{- n -}}  x  {#- c -#}  y\n{# d #}\nz",
    "{%+ if yes %}\n  a{% endif +%}\nb",
    "{% raw %}{{ x }}{% endraw %}\n",
    # strings
    "[{{ s.strip() }}] [{{ s.rstrip('! ') }}] [{{ s.lstrip('He') }}] {{ s.upper() }} {{ s.lower() }} {{ s.title() }}",
    "{{ s.startswith('Hello') }} {{ s.endswith(('! ', 'x')) }} {{ s.find('W') }} {{ s.find('!') }} {{ s.rfind('l') }} {{ s.find('q') }}",
    "{{ s.replace('l', 'L') }} {{ s.replace('l', 'L', 1) }} {{ s.count('l') }} {{ s.count('') }} {{ empty.isdigit() }} {{ '12'.isdigit() }}",
    "{{ think.split('</think>')[-1].lstrip('\\n') }} {{ think.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') }}",
    "{{ 'a  b c'.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ 'a\\nb\\n'.splitlines() }} {{ ''.split(',') }}",
    "{{ 'a=b=c'.partition('=') | list }} {{ 'a=b=c'.rpartition('=') | list }} {{ 'ab'.removeprefix('a') }} {{ 'ab'.removesuffix('b') }}",
    "{{ ', '.join(items) }} {{ 'ab'.capitalize() }} {{ '{} and {}'.format(1, 'x') }} {{ '%s-%d' | format('a', 3) }}",
    "{{ nested.get('z') }} {{ nested.get('q') }} {{ nested.get('q', 'd') }} {{ items.count('a') }}",
    "{{ 'x'.nonsense() }}",
    # filters
    "{{ items|sort|join(',') }} {{ items|first }} {{ items|last }} {{ items|length }} {{ items|reverse|list }} {{ items|max }}",
    "{{ people|map(attribute='name')|join(' ') }} {{ people|selectattr('age', 'defined')|map(attribute='age')|list }}",
    "{{ people|selectattr('name', 'equalto', 'Ada')|list }} {{ people|rejectattr('age')|map(attribute='name')|list }}",
    "{{ items|map('upper')|list }} {{ items|select('in', ['a', 'b'])|list }} {{ ['a', 'a']|unique|list }}",
    "{{ ' x '|trim }} {{ 'abc'|capitalize }} {{ 'a b'|title }} {{ 'abc'|replace('b', 'X') }} {{ '5'|int + 1 }} {{ '2.5'|float }} {{ -3|abs }} {{ 2.567|round(1) }}",
    "{{ 'a\\nb'|indent(2) }} {{ 'a\\nb'|indent(2, true) }} {{ [1, 2, 3]|sum }} {{ [3, 1]|sort }}",
    "{{ items|join }} {{ [1, none, true]|join(',') }}",
    "{{ s|length }} {{ nested|length }} {{ emoji|count }} {{ html|escape|length }} {{ items|list|tojson }} {{ 'x'|list }}",
    "{{ nested.items()|list|length }} {{ people|map(attribute='age', default=0)|sum }} {{ people|sum(attribute='age', start=1) if no }}",
    "{{ people|groupby('name')|list|length }} {{ items|batch(2)|list }} {{ 'a-b'|replace('-', '_')|upper }} {{ 3|string ~ 'x' }}",
    # expressions
    "{{ 'a' if yes else 'b' }} {{ 'a' if no }} {{ not yes }} {{ yes and no }} {{ no or 'x' }} {{ 1 < n <= 3 }} {{ n != 3 }}",
    "{{ {'a': 1, 'b': [2]} }} {{ {'a': 1}['a'] }} {{ (1, 2)[1] }} {{ dict(a=1).a }}",
    "{{ [1, 2] == [1, 2] }} {{ 1 == 1.0 }} {{ '1' == 1 }} {{ true == 1 }}",
    # refusals and mistakes
    "{{ raise_exception('Roles must alternate: ' ~ n) }}",
    "{% if n > 2 %}{{- raise_exception('no') }}{% endif %}",
    "{{ unknown_function() }}",
    "{{ n|unknown_filter }}",
    "{% if %}",
    "{{ items.append('x') }}",
]


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    env.filters["tojson"] = lambda x, ensure_ascii=False, indent=None, separators=None, sort_keys=False: json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    env.globals["raise_exception"] = raise_exception
    return env


class Raised(Exception):
    pass


def raise_exception(message):
    raise Raised(message)


def outcome(template):
    try:
        return {"rendered": environment().from_string(template).render(**VARIABLES)}
    except Raised as error:
        return {"raised": str(error)}
    except Exception:
        return {"error": True}


def main():
    cases = [{"template": template, **outcome(template)} for template in TEMPLATES]
    with open(sys.argv[1], "w", encoding="utf-8") as f:
        json.dump({"variables": VARIABLES, "cases": cases}, f, ensure_ascii=False, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
