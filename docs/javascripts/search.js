// Browsers do not let a page that was opened as a file load the search index: say how to serve the site.
if (location.protocol === "file:") {
  const command = "python -m http.server -d site";
  for (const input of document.querySelectorAll("input.md-search__input")) {
    input.placeholder = `To search, run: ${command}`;
    input.disabled = true;
    input.title = `Search works when the site is served: ${command}, then http://localhost:8000`;
  }
}
