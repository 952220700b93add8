"""A real program: templates compiled and rendered."""

from jinja2 import Environment
from measured import measured

SOURCE = """
{%- macro cell(value, kind="td") -%}<{{ kind }}>{{ value|string|upper|trim }}</{{ kind }}>{%- endmacro -%}
<table>{% for row in rows if row.shown %}
<tr class="{{ loop.cycle('odd', 'even') }}">{{ cell(loop.index, "th") }}
{% for value in row.cells %}{{ cell(value) }}{% if not loop.last %}, {% endif %}{% endfor %}
</tr>{% else %}empty{% endfor %}</table>
"""


def work(size):
    """Compile and render the table `size` times."""
    rows = [{"shown": number % 5, "cells": [number, number * 2, str(number)]} for number in range(300)]
    for _ in range(size):
        Environment(autoescape=True).from_string(SOURCE).render(rows=rows)


measured(work)
