// Runs before the page is painted, so that a chosen theme does not flash.
(function () {
  "use strict";
  var chosen = null;
  try { chosen = localStorage.getItem("capbench-theme"); } catch (refused) { /* file:// may refuse storage */ }
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
})();
