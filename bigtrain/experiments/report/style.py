"""How a report looks: on a screen by day and by night, on a phone, and on paper."""

STYLE = """
:root {
  color-scheme: light;
  --page: #ffffff; --ink: #1d1e1f; --quiet: #5c5f62; --line: #d5d7d9;
  --link: #1b5089; --holds: #1c6638; --fails: #a1261c;
  --serif: Charter, "Bitstream Charter", "Sitka Text", Cambria, Georgia, serif;
  --sans: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
  --mono: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    color-scheme: dark;
    --page: #17191b; --ink: #e4e3df; --quiet: #a6a8a9; --line: #3b3e41;
    --link: #8fbcec; --holds: #80c99a; --fails: #f29d93;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 1.0625rem/1.6 var(--serif); overflow-wrap: break-word;
}
main { max-width: 46rem; margin: 0 auto; padding: 3.5rem 1.25rem 5rem; }
h1, h2, h3 { line-height: 1.25; font-weight: 600; text-wrap: balance; }
h1 { font-size: 2.1rem; margin: 0 0 1rem; }
h2 { font-size: 1.55rem; margin: 0 0 .3rem; }
h3 { font: 600 1rem/1.4 var(--sans); margin: 2.25rem 0 .6rem; }
p { margin: 0 0 1rem; }
a { color: var(--link); text-underline-offset: .15em; }
a:focus-visible, summary:focus-visible, .scroll:focus-visible {
  outline: 2px solid var(--link); outline-offset: 2px;
}
code { font: .875em var(--mono); }
.lead { font-size: 1.1875rem; }
.about, .note, figcaption, footer { color: var(--quiet); font: .875rem/1.5 var(--sans); }
.about { margin-bottom: 1.4rem; }
section { margin-top: 4rem; padding-top: 2.25rem; border-top: 1px solid var(--line); }
nav { margin: 2.25rem 0; }
footer { margin-top: 4rem; padding-top: 1.5rem; border-top: 1px solid var(--line); }
footer h2 { font: 600 1rem/1.4 var(--sans); color: var(--ink); }

.claims { list-style: none; margin: 0; padding: 0; }
.claims li {
  display: grid; grid-template-columns: 8.5rem 1fr; column-gap: 1rem;
  padding: .7rem 0; border-top: 1px solid var(--line);
}
.claims li:last-child { border-bottom: 1px solid var(--line); }
.claims p { margin: 0; }
.mark { font: 600 .875rem/1.94 var(--sans); white-space: nowrap; }
.holds { color: var(--holds); }
.fails { color: var(--fails); }
.shown { color: var(--quiet); font: .875rem/1.5 var(--sans); }

figure { margin: 2.25rem 0; }
figure img {
  display: block; width: auto; max-width: 100%; height: auto; margin: 0 auto;
  background: #ffffff; padding: .5rem; border-radius: 3px;
}
figcaption { max-width: 38rem; margin: .7rem auto 0; }

.scroll { overflow-x: auto; margin: 1.75rem 0 .6rem; }
table {
  border-collapse: collapse; min-width: 100%;
  font: .875rem/1.45 var(--sans); font-variant-numeric: tabular-nums lining-nums;
}
caption { text-align: left; font-weight: 600; font-size: 1rem; padding-bottom: .5rem; }
th, td { text-align: left; vertical-align: baseline; padding: .4rem 1.25rem .4rem 0; }
th:last-child, td:last-child { padding-right: 0; }
thead th { font-weight: 600; color: var(--quiet); vertical-align: bottom; }
thead tr { border-bottom: 1px solid var(--quiet); }
tbody tr { border-bottom: 1px solid var(--line); }
tbody th { font-weight: 400; }
.number { text-align: right; }
td.number { white-space: nowrap; }
.note { margin-top: 0; }

.policies { margin: 0 0 1rem; padding-left: 1.2rem; }
.policies span { color: var(--quiet); font: .875rem/1.5 var(--sans); }
details { margin-top: 2.25rem; }
summary { font: 600 1rem/1.4 var(--sans); cursor: pointer; }
details td, details tbody th { font-family: var(--mono); font-size: .8125rem; }

@media (max-width: 34rem) {
  main { padding-top: 2rem; }
  h1 { font-size: 1.7rem; }
  h2 { font-size: 1.35rem; }
  .claims li { grid-template-columns: 1fr; }
}
@media print {
  body { font-size: 10.5pt; }
  main { max-width: none; padding: 0; }
  section { margin-top: 2rem; }
  h2, h3, caption { break-after: avoid; }
  .claims li, figure, tr { break-inside: avoid; }
  thead { display: table-header-group; }
  .scroll { overflow: visible; }
  a { color: inherit; text-decoration: none; }
  details { display: none; }
}
"""
