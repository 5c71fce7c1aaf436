// Everything is loaded: watch for charts that come into view, and signal readiness.
"use strict";
charts.start();
document.documentElement.dataset.ready = "true";
performance.mark("report-ready");
