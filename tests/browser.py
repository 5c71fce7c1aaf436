"""A real browser for tests of pages: headless Chromium, with an eye on errors, requests and contrast.

``seen = visit(file, width=375, dark=True)`` opens a page, and ``seen.page`` is playwright's page. Tests are
skipped where playwright or Chromium is missing.
"""

import shutil
from dataclasses import dataclass, field
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
# WebGL without a graphics card; no sandbox, since tests also run as root in containers
_ARGUMENTS = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
_INLINE = ("data:", "blob:", "about:")

#: Elements that reach beyond the right edge of the window and are not in a box that scrolls by itself.
_OVERFLOW = """() => {
  const wide = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth <= wide) return [];
  const scrolls = (e) => e && e !== document.body && e !== document.documentElement &&
    (getComputedStyle(e).overflowX !== 'visible' || scrolls(e.parentElement));
  return [...document.body.querySelectorAll('*')]
    .filter((e) => e.getBoundingClientRect().right > wide + 1 && !scrolls(e))
    .map((e) => `${e.tagName}.${e.className}#${e.id} reaches ${Math.round(e.getBoundingClientRect().right)}`);
}"""

#: Visible texts whose contrast with what is behind them is below WCAG's level AA.
_CONTRAST = """() => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const colour = (css) => {  // any CSS colour as red, green, blue, alpha
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = css; canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, under) => [0, 1, 2].map((i) => top[3] * top[i] + (1 - top[3]) * under[i]);
  const behind = (e) => {
    if (!e) return [255, 255, 255];
    const own = colour(getComputedStyle(e).backgroundColor);
    return own[3] === 1 ? own.slice(0, 3) : over(own, behind(e.parentElement));
  };
  const light = (c) => {
    const [r, g, b] = c.map((v) => v / 255)
      .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const e = texts.currentNode.parentElement, text = texts.currentNode.data.trim();
    if (!text || !e.checkVisibility({visibilityProperty: true, opacityProperty: true})) continue;
    if (e.closest('script, style, noscript') || !e.getClientRects().length) continue;
    const style = getComputedStyle(e), back = behind(e);
    const ink = e.closest('svg') ? style.fill : style.color;
    const [a, b] = [light(over(colour(ink), back)), light(back)].sort((x, y) => y - x);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && +style.fontWeight >= 700);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < (large ? 3 : 4.5))
      found.push(`${ratio.toFixed(2)}: ${e.tagName}.${e.getAttribute('class')} "${text.slice(0, 40)}"`);
  }
  return found;
}"""


@dataclass
class Visit:
    """A page that was opened."""

    page: Any  # playwright's
    problems: list[str] = field(default_factory=list)  # errors of the console, and uncaught exceptions
    requests: list[str] = field(default_factory=list)  # other than the file itself and what is inline

    def resize(self, width: int, height: int = 900) -> None:
        """Another window."""
        self.page.set_viewport_size({"width": width, "height": height})

    def switch(self, *, dark: bool) -> None:
        """Another scheme of the system."""
        self.page.emulate_media(color_scheme="dark" if dark else "light")
        self.page.evaluate("() => new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(r)))")

    def overflow(self) -> list[str]:
        """Elements that make the page scroll sideways."""
        return self.page.evaluate(_OVERFLOW)

    def low_contrast(self) -> list[str]:
        """Visible texts below a contrast of 4.5 (3 if large), with the ratio (WCAG 2, level AA)."""
        return self.page.evaluate(_CONTRAST)


@pytest.fixture(scope="module")
def visit():
    """Open files in windows of one browser; they stay open for the other tests of the module."""
    api = pytest.importorskip("playwright.sync_api")
    path = next((found for name in _NAMES if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip(f"no Chromium on PATH (looked for {', '.join(_NAMES)})")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_ARGUMENTS)

        def open_page(file, *, width=1280, dark=False):
            scheme = "dark" if dark else "light"
            window = {"width": width, "height": 900}
            page = browser.new_page(viewport=window, color_scheme=scheme, reduced_motion="reduce")
            seen, address = Visit(page), file.resolve().as_uri()
            page.on("pageerror", lambda error: seen.problems.append(f"uncaught: {error}"))
            page.on("console", lambda said: seen.problems.append(said.text) if said.type == "error" else None)
            allowed = (address, *_INLINE)
            page.on("request", lambda r: None if r.url.startswith(allowed) else seen.requests.append(r.url))
            page.goto(address)
            return seen

        yield open_page
        browser.close()
