"""How a report looks: one column, quiet colors that hold in light and dark, ink on paper."""

from __future__ import annotations

STYLE = """
:root {
  --page: #ffffff; --card: #f6f7f9; --ink: #1f2328; --faint: #57606a; --line: #e1e5ea;
  --c0: #1763a6; --c1: #b04a00; --c2: #2f7031; --c3: #6f42a8;
  --good: #1a7f37; --bad: #b3261e; --bad-card: #fdf1f0;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --page: #14171b; --card: #1d2126; --ink: #e4e7eb; --faint: #a0a9b4; --line: #32383f;
    --c0: #64aef0; --c1: #f0984e; --c2: #74c476; --c3: #bd9af0;
    --good: #63c174; --bad: #ff8a80; --bad-card: #2b1d1e;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif;
  font-variant-numeric: tabular-nums;
}
main { max-width: 860px; margin: 0 auto; padding: 40px 24px 56px; }
h1 { margin: 6px 0 2px; font-size: 30px; line-height: 1.2; letter-spacing: -.01em; }
h1 small { font-size: 18px; font-weight: 400; color: var(--faint); letter-spacing: 0; }
h2 { margin: 0 0 12px; font-size: 18px; }
h3 { margin: 0 0 6px; font-size: 14px; }
p { margin: 0; }
section { margin-top: 36px; }
.faint { color: var(--faint); font-size: 13px; }
.state { font-weight: 600; font-size: 14px; }
.state.good { color: var(--good); } .state.bad { color: var(--bad); }
.state.calm { color: var(--c0); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; }
.cards > div { background: var(--card); border-radius: 10px; padding: 12px 16px; }
.big { font-size: 26px; font-weight: 600; line-height: 1.3; }
figure { margin: 0 0 24px; }
figcaption { color: var(--faint); font-size: 13px; margin-top: 4px; }
.wide { overflow-x: auto; }
.wide > .chart { min-width: 540px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: left; padding: 6px 14px 6px 0; border-bottom: 1px solid var(--line); }
thead th { color: var(--faint); font-weight: 500; font-size: 13px; white-space: nowrap; }
th.num, td.num { text-align: right; white-space: nowrap; }
td { vertical-align: top; overflow-wrap: anywhere; }
.pairs th { font-weight: 400; color: var(--faint); width: 1%; white-space: nowrap; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(320px, 1fr)); gap: 8px 40px; }
ul { margin: 0; padding-left: 20px; }
li { margin-bottom: 4px; overflow-wrap: anywhere; }
pre {
  margin: 8px 0 0; padding: 12px 16px; background: var(--card); border-radius: 8px;
  font: 13px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace;
  white-space: pre-wrap; overflow-wrap: anywhere;
}
.error {
  margin-top: 20px; padding: 12px 16px; border-radius: 0 8px 8px 0;
  background: var(--bad-card); border-left: 4px solid var(--bad);
}
summary { cursor: pointer; padding: 6px 0; }
summary:focus-visible { outline: 2px solid var(--c0); outline-offset: 2px; }
footer { margin-top: 44px; border-top: 1px solid var(--line); padding-top: 12px; }
@media print {
  body { font-size: 11pt; }
  main { max-width: none; padding: 0; }
  .cards > div, pre { border: 1px solid var(--line); }
  figure, .cards, tr, pre.error { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  details { display: none; }
}
"""
