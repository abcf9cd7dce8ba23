"""The page's skeleton, as a Jinja template that escapes all text; style, script and figures are put in whole."""

from typing import Final

TEMPLATE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:">
<title>{{ data.title }}</title>
<style>{{ css }}</style>
</head>
<body>
<main>
{%- macro draw(figure) %}
<div class="scroll"><div class="figure" id="figure-{{ figure.name }}" data-source="json-{{ figure.name }}"
  role="img" aria-label="{{ figure.alt }}"
  style="height:{{ figure.layout.height }}px;min-width:{{ figure.min_width_px }}px"></div></div>
<script type="application/json" id="json-{{ figure.name }}">{{ figure | figure_json }}</script>
{%- endmacro %}
{%- macro key_list(keys) %}
<ul class="keys">
{%- for key in keys %}
<li>
{%- if key.style == "cross" %}<i class="cross" style="color:{{ key.colour }}">✕</i>
{%- else %}<i class="{{ key.style }}" style="background:{{ key.colour }}"></i>{% endif %}{{ key.label }}</li>
{%- endfor %}
</ul>
{%- endmacro %}

<header>
<div class="kicker">{{ data.title }} · {{ data.plan.profile.target }}
{%- if data.plan.profile.drafter %} with drafter {{ data.plan.profile.drafter }}{% endif %} · {{ data.created }}</div>
<h1>{{ data.plan.verdict.headline | unbroken }}</h1>
<p class="lead">{{ data.plan.verdict.prediction | unbroken }}</p>
</header>
<div class="tiles">
{%- for tile in tiles %}
<div class="tile"><b>{{ tile.value | unbroken }}</b><span>{{ tile.label | unbroken }}</span></div>
{%- endfor %}
</div>
<dl class="reasons">
{%- for name, sentences in reasons if sentences %}
<dt>{{ name }}</dt><dd>{% for sentence in sentences %}<p>{{ sentence | unbroken }}</p>{% endfor %}</dd>
{%- endfor %}
</dl>

<section id="results">
<h2>{{ results_heading }}</h2>
<p class="lead">Decoding time per committed token, prefill left out. <span class="ring"></span> predicted with its
interval{% if has_measured %}, <span class="disc"></span> measured with the range of its repeats{% endif %}.</p>
<table class="results">
<thead><tr><th>Schedule</th><th>Predicted</th>{% if has_measured %}<th>Measured</th><th>Error</th>{% endif %}
<th class="plot">0 to {{ scale_end }}</th></tr></thead>
<tbody>
{%- for row in result_rows %}
<tr{% if row.is_winner %} class="winner"{% endif %}>
<td class="name" style="border-left-color:{{ row.colour }}">{{ row.name }}
{%- if row.is_winner %}<small>fastest predicted</small>{% endif %}</td>
<td class="number" data-label="predicted">{{ row.predicted }}<small>{{ row.predicted_range }}</small></td>
{%- if has_measured %}
<td class="number" data-label="measured">{{ row.measured }}<small>{{ row.measured_range }}</small></td>
<td class="number" data-label="error">{{ row.error }}
{%- if row.is_within is not none %}
<small class="{{ 'good' if row.is_within else 'bad' }}">{{ 'within' if row.is_within else 'outside' }}</small>
{%- endif %}</td>
{%- endif %}
<td class="plot"><div class="track" style="color:{{ row.colour }}">
{%- for kind, mark in (("predicted", row.predicted_mark), ("real", row.measured_mark)) if mark %}
<i class="{{ kind }}" style="left:{{ mark.low | round(2) }}%;width:{{ (mark.high - mark.low) | round(2) }}%"></i>
<b class="{{ kind }}" style="left:{{ mark.at | round(2) }}%"></b>
{%- endfor %}
</div></td>
</tr>
{%- endfor %}
</tbody>
</table>
</section>

{%- if timelines %}
<section id="timelines">
<h2>The same seconds, {{ "simulated and measured" if has_measured else "simulated" }}</h2>
<p class="lead">The first rounds of one prompt: <em>{{ prompt_name }}</em>. Above the lanes, the tokens that every
round committed. Drag to zoom, double-click to go back.</p>
{{- key_list(timeline_keys) }}
{%- for name, figure in timelines %}
<figure><h3>{{ name }}</h3>{{ draw(figure) }}</figure>
{%- endfor %}
</section>
{%- endif %}

<section id="time">
<h2>Where the time goes</h2>
<p class="lead">Predicted time per token by what the round was waiting for. Draft work hidden behind the target costs
nothing and is not in the bars.</p>
{{- key_list(time_keys) }}
{%- for row in time_rows %}
<div class="stack"><div class="title"><span>{{ row.name }}</span><b>{{ row.total }}</b></div>
<div class="bar">
{%- for segment in row.segments -%}
<i style="width:{{ segment.width | round(3) }}%;background:{{ segment.colour }}" title="{{ segment.text }}"></i>
{%- endfor %}
{%- if row.measured %}<u style="left:{{ row.measured | round(3) }}%" title="measured"></u>{% endif %}</div></div>
{%- endfor %}
</section>

{%- if landscape %}
<section id="search">
<h2>What the search saw</h2>
<p class="lead">The best of {{ num_candidates }} schedules, by kind and number of drafted tokens.
 {% if winner_drafts %}The star marks the fastest.{% endif %}</p>
<figure>{{ draw(landscape) }}</figure>
{%- if exit_layers %}
<figure><h3>Mirror by exit layer, best ms per token</h3>{{ draw(exit_layers) }}</figure>
{%- endif %}
</section>
{%- endif %}

{%- if break_even %}
<section id="change">
<h2>What would have to change</h2>
<p class="lead">The best of every kind while one thing moves and all else stays. Rings mark where another kind takes the
lead. {{ bound_sentence }}</p>
<div class="pair">
{%- for name, figure in break_even %}
<figure><h3>{{ name }}</h3>{{ draw(figure) }}</figure>
{%- endfor %}
</div>
</section>
{%- endif %}

{%- if acceptance %}
<section id="acceptance">
<h2>How many drafted tokens are accepted</h2>
<p class="lead">Share of rounds that accept the first, second, … drafted token; in a tree, one on that level.
{% if has_measured %}Rings are replayed from the record, dots were counted in real runs.
{%- else %}Replayed from the record.{% endif %}</p>
{{- key_list(acceptance_keys) }}
<figure>{{ draw(acceptance) }}</figure>
</section>
{%- endif %}

<section id="calibration">
<h2>What was measured to predict this</h2>
<dl class="facts">
{%- for name, value in facts %}
<dt>{{ name }}</dt><dd>{{ value }}</dd>
{%- endfor %}
</dl>
<div class="scroll"><table>
<thead><tr><th>Lane</th><th>Part</th><th>Rows</th><th>Fewest rows</th><th>Most rows</th><th>Spread</th></tr></thead>
<tbody>
{%- for row in calibration_rows %}
<tr><td>{{ row.lane }}</td><td>{{ row.part }}</td><td class="number">{{ row.rows }}</td>
<td class="number">{{ row.one_row }}</td><td class="number">{{ row.most_rows }}</td>
<td class="number">{{ row.spread }}</td></tr>
{%- endfor %}
</tbody>
</table></div>
</section>

<footer id="notes">
<h2>Fine print</h2>
<ul class="notes">
{%- for note in notes %}
<li>{{ note }}</li>
{%- endfor %}
</ul>
</footer>
</main>
<noscript><p>The figures need JavaScript; everything they show is also in this file as JSON.</p></noscript>
<script>{{ plotly_js }}</script>
<script>{{ javascript }}</script>
</body>
</html>
"""
