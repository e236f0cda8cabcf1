// Renders formulas: `\(..\)` and `\[..\]` as arithmatex writes them, and the
// dollars that notebooks keep.
(function () {
  // A line must not begin with the point or comma after a formula.
  function keepPunctuation(formula) {
    const text = formula.parentElement.nextSibling;
    const bases = formula.querySelectorAll('.katex-html > .katex-base');
    if (!bases.length || !text || text.nodeType !== Node.TEXT_NODE) return;
    const found = text.data.match(/^[.,:;!?)]+/);
    if (!found) return;
    bases[bases.length - 1].append(found[0]);
    text.data = text.data.slice(found[0].length);
  }
  function render() {
    document.querySelectorAll('.arithmatex').forEach(function (element) {
      const text = element.textContent;
      const display = text.startsWith('\\[');
      katex.render(text.slice(2, -2), element, {
        displayMode: display,
        throwOnError: false,
      });
    });
    document.querySelectorAll('.jp-MarkdownOutput').forEach(function (element) {
      renderMathInElement(element, {
        delimiters: [
          { left: '$$', right: '$$', display: true },
          { left: '$', right: '$', display: false },
        ],
        throwOnError: false,
      });
    });
    document
      .querySelectorAll(':not(.katex-display) > .katex')
      .forEach(keepPunctuation);
  }
  if (document.readyState === 'loading') {
    document.addEventListener('DOMContentLoaded', render);
  } else {
    render();
  }
})();
