"""The page's style sheet: one palette for both themes (after Okabe and Ito, safe for colour-blind readers)."""

from typing import Final

CSS: Final = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --panel: #f4f6f8; --ink: #15191e; --soft: #57606c; --line: #dde2e7;
  --plain: #6e7781; --sync: #0072b2; --tree: #7a4fa3; --mirror: #c4500a;
  --verify: #0072b2; --prefix: #00507d; --suffix: #56b4e9; --stream: #0b7f79;
  --rollout: #e69f00; --branch: #009e73; --finish: #8fd3b6;
  --channel: #cc79a7; --contention: #7d5ba6; --overhead: #a3abb5;
  --hit: #00805d; --miss: #c4500a; --good: #00805d; --bad: #b3430a;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #12161b; --panel: #1b2128; --ink: #e9edf1; --soft: #9ba6b2; --line: #2c353f;
    --plain: #a1abb6; --sync: #4fabe6; --tree: #b592dd; --mirror: #ef8140;
    --verify: #2f8fce; --prefix: #1e6a9e; --suffix: #7cc6f2; --stream: #35b3ab;
    --rollout: #e8ab27; --branch: #18b489; --finish: #9bdcc2;
    --channel: #d98fb6; --contention: #a183cc; --overhead: #77828e;
    --hit: #2cc79b; --miss: #ef8140; --good: #2cc79b; --bad: #ef8140;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
  font-variant-numeric: tabular-nums;
}
main { max-width: 1080px; margin: 0 auto; padding: 40px 28px 72px; }
h1, h2, h3 { line-height: 1.22; text-wrap: balance; }
h1 { font-size: 1.9rem; margin: 4px 0 8px; max-width: 26em; letter-spacing: -.012em; }
h2 { font-size: 1.25rem; margin: 64px 0 4px; }
h3 { font-size: .95rem; margin: 26px 0 2px; }
p { margin: 6px 0; max-width: 46em; }
.kicker, .lead, footer, figcaption { color: var(--soft); }
.kicker { font-size: .88rem; overflow-wrap: anywhere; }
.lead { margin-bottom: 16px; }

.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(190px, 1fr)); gap: 12px; margin: 24px 0 28px; }
.tile { background: var(--panel); border-radius: 8px; padding: 14px 16px; }
.tile b { display: block; font-size: 1.5rem; font-weight: 650; line-height: 1.25; letter-spacing: -.01em; }
.tile span { color: var(--soft); font-size: .86rem; display: block; line-height: 1.4; }

.reasons { display: grid; grid-template-columns: 8.5em 1fr; gap: 12px 20px; margin: 0; }
.reasons dt { color: var(--soft); font-size: .92rem; padding-top: 1px; }
.reasons dd { margin: 0; max-width: 46em; }
.reasons dd p { margin: 0 0 4px; }

.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; }
th { text-align: left; font-weight: 500; color: var(--soft); font-size: .84rem; }
th { padding: 6px 12px 6px 0; vertical-align: bottom; }
td { border-top: 1px solid var(--line); padding: 9px 12px 9px 0; vertical-align: top; }
td small { display: block; font-weight: 400; color: var(--soft); font-size: .78rem; white-space: nowrap; }
.number { white-space: nowrap; }
.name { border-left: 4px solid; padding-left: 10px; }
.winner .name { font-weight: 650; }
.good { color: var(--good); } .bad { color: var(--bad); }
.plot { width: 38%; min-width: 180px; padding-right: 0; }
.track { position: relative; height: 26px; }
.track { background: linear-gradient(var(--line), var(--line)) 0 50% / 100% 1px no-repeat; }
.track i { position: absolute; height: 6px; border-radius: 3px; opacity: .38; background: currentColor; }
.track b { position: absolute; width: 11px; height: 11px; margin-left: -5.5px; border-radius: 50%; }
.track .predicted { top: 2px; } .track i.predicted { top: 4.5px; }
.track .real { top: 13px; } .track i.real { top: 15.5px; }
.track b.predicted { background: var(--paper); border: 2px solid; }
.track b.real { background: currentColor; }
.ring, .disc { display: inline-block; width: 10px; height: 10px; border-radius: 50%; border: 2px solid var(--soft); }
.disc { background: var(--soft); }

.keys { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 10px 0 6px; padding: 0; list-style: none; }
.keys { font-size: .84rem; color: var(--soft); }
.keys i { display: inline-block; width: 13px; height: 13px; border-radius: 2px; }
.keys i { margin-right: 6px; vertical-align: -2px; }
.keys .dot { border-radius: 50%; width: 9px; height: 9px; vertical-align: 0; }
.keys .cross { width: auto; height: auto; font-style: normal; font-weight: 700; vertical-align: 0; }
.keys .tick { width: 3px; height: 15px; border-radius: 0; }
.keys .hatched { background: repeating-linear-gradient(-45deg, var(--soft) 0 2px, transparent 2px 5px) !important; }

.stack { margin: 0 0 12px; }
.stack .title { display: flex; justify-content: space-between; gap: 12px; font-size: .88rem; }
.stack .title b { font-weight: 500; white-space: nowrap; }
.stack .bar { position: relative; display: flex; height: 20px; margin-top: 2px; }
.stack .bar i { display: block; height: 100%; border-right: 1px solid var(--paper); }
.stack .bar u { position: absolute; top: -3px; bottom: -3px; width: 3px; margin-left: -1.5px; }
.stack .bar u { background: var(--ink); box-shadow: 0 0 0 1px var(--paper); }

figure { margin: 8px 0 0; }
.pair { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 8px 32px; }
.figure { width: 100%; }
ul.notes { padding-left: 1.1em; font-size: .9rem; color: var(--soft); }
ul.notes li { margin: 4px 0; max-width: 60em; }
dl.facts { display: grid; grid-template-columns: max-content 1fr; gap: 2px 16px; }
dl.facts { font-size: .9rem; margin: 12px 0 20px; }
dl.facts dt { color: var(--soft); } dl.facts dd { margin: 0; overflow-wrap: anywhere; }

@media (max-width: 720px) {
  main { padding: 24px 16px 48px; }
  h1 { font-size: 1.45rem; } h2 { margin-top: 48px; }
  .pair { grid-template-columns: minmax(0, 1fr); }
  .reasons { grid-template-columns: 1fr; gap: 0; } .reasons dt { margin-top: 14px; }
  .tiles { grid-template-columns: 1fr 1fr; gap: 8px; } .tile { padding: 10px 12px; } .tile b { font-size: 1.2rem; }
  .results thead { display: none; }
  .results tr { display: grid; grid-template-columns: 1fr 1fr auto; }
  .results tr { border-top: 1px solid var(--line); padding: 10px 0 4px; }
  .results td { border: 0; padding: 2px 8px 2px 0; }
  .results td.name { grid-column: 1 / -1; border-left: 4px solid; padding-left: 10px; margin-bottom: 4px; }
  .results td.plot { grid-column: 1 / -1; width: 100%; }
  .results td.number::before { content: attr(data-label); display: block; color: var(--soft); font-size: .76rem; }
}
@media print { .scroll { overflow: visible; } h2 { break-after: avoid; } figure, .stack, tr { break-inside: avoid; } }
"""
