// Everything is there: watch for charts that come into view, and say so to whoever waits.
"use strict";
charts.start();
document.documentElement.dataset.ready = "true";
performance.mark("report-ready");
