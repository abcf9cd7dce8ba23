/* Draws every figure with the theme's colours, and again when the theme changes; copies commands. */
(() => {
  const dark = matchMedia('(prefers-color-scheme: dark)');
  const resolve = (value, style) =>
    typeof value === 'string' ? value.replace(/var\((--[\w-]+)\)/g, (_, name) => style.getPropertyValue(name).trim())
    : Array.isArray(value) ? value.map(item => resolve(item, style))
    : value && typeof value === 'object'
      ? Object.fromEntries(Object.entries(value).map(([key, item]) => [key, resolve(item, style)]))
    : value;
  const draw = () => {
    const style = getComputedStyle(document.documentElement);
    for (const place of document.querySelectorAll('.figure')) {
      const source = JSON.parse(document.getElementById(place.dataset.source).textContent);
      const { data, layout } = resolve(source, style);
      Plotly.react(place, data, layout, { responsive: true, displayModeBar: false, doubleClick: false });
    }
  };
  // Plotly would keep a finger to itself: it never hears of it, so the page scrolls; a tap still shows a point's text.
  const leaveToPage = event => event.stopPropagation();
  for (const place of document.querySelectorAll('.figure')) {
    for (const kind of ['touchstart', 'touchmove']) {
      place.addEventListener(kind, leaveToPage, { capture: true, passive: true });
    }
  }
  for (const button of document.querySelectorAll('.copy')) {
    button.addEventListener('click', async () => {
      const code = button.previousElementSibling;
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = 'Copied';
      } catch {
        getSelection().selectAllChildren(code);
        button.textContent = 'Selected';
      }
    });
  }
  dark.addEventListener('change', draw);
  // Paper: light colours, figures as wide as a page, and what is folded away too.
  const folded = new Set();
  addEventListener('beforeprint', () => {
    document.documentElement.classList.add('print');
    for (const one of document.querySelectorAll('details:not([open])')) { folded.add(one); one.open = true; }
    draw();
  });
  addEventListener('afterprint', () => {
    document.documentElement.classList.remove('print');
    for (const one of folded) one.open = false;
    folded.clear();
    draw();
  });
  draw();
})();
