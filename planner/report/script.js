/* Draws every figure with the theme's colours, and again when the theme changes. */
(() => {
  const dark = matchMedia('(prefers-color-scheme: dark)');
  const touch = matchMedia('(pointer: coarse)');
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
      // A finger scrolls the page; only a mouse zooms.
      if (touch.matches) layout.dragmode = false;
      Plotly.react(place, data, layout, { responsive: true, displayModeBar: false });
    }
  };
  dark.addEventListener('change', draw);
  draw();
})();
