"""What people see: reports, tables, figures.

All that is read is Markdown, made here once: a file as it is, HTML by `html`, and a
terminal by `tables.render_text`. `words`, `checks` and `audit_notes` have the sentences,
`cells` the numbers.

Arguments that many functions share:
  result: what result.json holds of a run.
  audit: of a run or of scores; `attacks` are its attackers, `attack` is one of them.
  found: the `leaks` of the attackers of a first page, that by the model first.
  participations: how often canaries and clients take part.
  provenance, belongs_to: what a report belongs to.
  captions: file name -> what that figure shows, in the order of the page.
  runs: labelled runs, two or more at one δ where they are compared; differences are to
    the first.
  settings: what a sweep sets, field -> value.
  history, metrics: the lines of metrics.jsonl; `warnings` are what `sentences` tells of
    them.
  record, trace: what attackers saw, and its cosines of every round.
  analytic: ε of the run by analysis; inf without noise, nan if it is not known.
  finding: the result, the title of a figure; `canaries` are their numbers, below it.
  axes, y, highest: a panel, a row of it, the largest ε in it.
  markdown: whether a text is Markdown, or else in columns.
  workdir: the folder of a finished run or of a sweep.
Texts that are returned end without a newline.
"""
