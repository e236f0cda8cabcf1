// Renders formulas: `\(..\)` and `\[..\]` as arithmatex writes them, and the
// dollars that notebooks keep.
(function () {
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
  }
  if (document.readyState === 'loading') {
    document.addEventListener('DOMContentLoaded', render);
  } else {
    render();
  }
})();
