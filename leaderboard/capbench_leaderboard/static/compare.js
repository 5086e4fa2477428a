// Two or three architectures side by side: compare.html#TASK:ARCHITECTURE,ARCHITECTURE. Values are set as text.
(function () {
  "use strict";
  var tasks = window.CAPBENCH_COMPARE, element = window.CAPBENCH.element;
  var taskList = document.getElementById("task"), picks = Array.from(document.querySelectorAll(".pick"));
  var page = document.getElementById("compared");
  var PATHS = {
    circle: "M1 6a5 5 0 1 0 10 0a5 5 0 1 0 -10 0", square: "M1.5 1.5h9v9h-9z", "triangle-up": "M6 1L11.5 10.5H.5z",
    diamond: "M6 0L11 6L6 12L1 6z", cross: "M4 0h4v4h4v4h-4v4h-4v-4h-4v-4h4z"
  };

  function symbol(arch, owner) {
    var picture = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    var path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    picture.setAttribute("class", "symbol");
    picture.setAttribute("viewBox", "0 0 12 12");
    picture.setAttribute("fill", arch.colour);
    picture.setAttribute("aria-hidden", "true");
    path.setAttribute("d", PATHS[arch.shape] || PATHS.cross);
    picture.appendChild(path);
    owner.appendChild(picture);
  }

  function decoded(text) {
    try { return decodeURIComponent(text); } catch (malformed) { return text; }
  }

  // What the address asks for, where the board has it; what it does not name is chosen here.
  function choice() {
    var parts = location.hash.slice(1).split(":"), task = decoded(parts[0]), names = Object.keys(tasks);
    if (!Object.prototype.hasOwnProperty.call(tasks, task)) task = names[0];
    var known = Object.keys(tasks[task].architectures);
    var wanted = parts.slice(1).join(":").split(",").map(decoded);
    var chosen = wanted.filter(function (name, i) { return known.indexOf(name) >= 0 && wanted.indexOf(name) === i; }).slice(0, 3);
    known.forEach(function (name) { if (chosen.length < 2 && chosen.indexOf(name) < 0) chosen.push(name); });
    var absent = wanted.filter(function (name) { return name && known.indexOf(name) < 0; });
    return { task: task, names: chosen, absent: absent };
  }

  function option(list, value, label, isChosen) {
    var made = element("option", label, list);
    made.value = value;
    made.selected = isChosen;
  }

  function fill(chosen) {
    taskList.replaceChildren();
    Object.keys(tasks).forEach(function (name) { option(taskList, name, tasks[name].label, name === chosen.task); });
    picks.forEach(function (list, i) {
      list.replaceChildren();
      if (i > 1) option(list, "", "none", !chosen.names[i]);
      var families = {};
      Object.keys(tasks[chosen.task].architectures).forEach(function (name) {
        var arch = tasks[chosen.task].architectures[name];
        if (!families[arch.family]) {
          families[arch.family] = element("optgroup", undefined, list);
          families[arch.family].label = arch.family;
        }
        option(families[arch.family], name, arch.label, name === chosen.names[i]);
      });
    });
  }

  function address() {
    var names = picks.map(function (list) { return list.value; }).filter(Boolean).map(encodeURIComponent);
    location.hash = encodeURIComponent(taskList.value) + ":" + names.join(",");
  }

  // The probability that a standard normal value is below z (Abramowitz and Stegun 26.2.17, to 1e-7).
  function normal(z) {
    var t = 1 / (1 + 0.2316419 * Math.abs(z));
    var tail = Math.exp(-z * z / 2) / Math.sqrt(2 * Math.PI) *
      t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))));
    return z > 0 ? 1 - tail : tail;
  }

  function spread(cell) {
    return cell.low > 0 && cell.high > 0 ? Math.log(cell.high / cell.low) / (2 * 1.959964) : null;
  }

  function percent(share) {
    return share > 0.99 ? "more than 99 %" : share < 0.01 ? "less than 1 %" : Math.round(100 * share) + " %";
  }

  // What is known of the ratio of two capacities, as a sentence.
  function sentence(one, other, a, b) {
    var where = "At about " + a.tier + " parameters " + one.label + " holds ";
    var sa = spread(a), sb = spread(b), ratio = a.estimate / b.estimate;
    var text = where + ratio.toFixed(2) + " × as many facts as " + other.label;
    if (sa === null || sb === null) return text + "; of one of them only one side is known.";
    var s = Math.sqrt(sa * sa + sb * sb) || 1e-9;
    text += " (95 %: " + (ratio * Math.exp(-1.96 * s)).toFixed(2) + " to " + (ratio * Math.exp(1.96 * s)).toFixed(2) + ")";
    if (!a.settled || !b.settled) return text + "; not settled, so more steps may change that.";
    return text + "; probability that it holds more: " + percent(normal(Math.log(ratio) / s)) + ".";
  }

  function cellAt(arch, size) {
    return arch.cells.filter(function (cell) { return cell.size === size; })[0];
  }

  function table(archs, size) {
    var cells = archs.map(function (arch) { return cellAt(arch, size); });
    var first = cells.filter(Boolean)[0], scroll = element("div", undefined, page);
    scroll.className = "scroll";
    scroll.tabIndex = 0;
    var made = element("table", undefined, scroll), head = element("tr", undefined, element("thead", undefined, made));
    element("td", "", head);
    archs.forEach(function (arch, i) {
      var th = element("th", undefined, head);
      th.scope = "col";
      symbol(arch, th);
      var link = element("a", arch.label, th);
      link.href = cells[i] ? cells[i].href : arch.href;
    });
    var body = element("tbody", undefined, made);
    Object.keys(first.texts).forEach(function (name) {
      var line = element("tr", undefined, body);
      element("th", name, line).scope = "row";
      cells.forEach(function (cell) {
        var td = element("td", cell ? cell.texts[name] : "no record", line);
        if (cell && !cell.settled) td.className = "greyed";
      });
    });
  }

  function sentences(archs, size) {
    var list = element("ul", undefined, page);
    archs.slice(1).forEach(function (other) {
      var a = cellAt(archs[0], size), b = cellAt(other, size);
      if (a && b) element("li", sentence(archs[0], other, a, b), list);
    });
    if (!list.children.length) list.remove();
  }

  function picture(task, archs) {
    var figure = element("figure", undefined, page), caption = element("figcaption", undefined, figure);
    caption.textContent = "Bits per parameter against parameters: " + task.label;
    var labels = archs.map(function (arch) { return arch.label; }), box = element("div", undefined, figure), datasets = {};
    Object.keys(task.datasets).forEach(function (name) {
      datasets[name] = task.datasets[name].filter(function (row) {
        return !row.architecture || labels.indexOf(row.architecture) >= 0;
      });
    });
    box.className = "chart";
    box.dataset.chart = "bits";
    box.dataset.height = "300";
    box.dataset.drawn = "yes";
    box.style.minHeight = "350px";
    box.datasets = datasets;
    box.setAttribute("role", "img");
    box.setAttribute("aria-label", caption.textContent);
    window.CAPBENCH.chart(box);
    var legend = element("div", undefined, figure);
    legend.className = "legend";
    archs.forEach(function (arch) {
      var key = element("span", undefined, legend);
      symbol(arch, key);
      key.appendChild(document.createTextNode(arch.label));
    });
  }

  function draw() {
    var chosen = choice(), task = tasks[chosen.task];
    var archs = chosen.names.map(function (name) { return task.architectures[name]; }), sizes = [];
    fill(chosen);
    page.replaceChildren();
    if (chosen.absent.length) element("p", "Not on this board: " + chosen.absent.join(", "), page).className = "warning";
    document.title = archs.map(function (arch) { return arch.label; }).join(", ") + " on " + task.label + " · capbench";
    archs.forEach(function (arch) {
      arch.cells.forEach(function (cell) { if (sizes.indexOf(cell.size) < 0) sizes.push(cell.size); });
    });
    picture(task, archs);
    sizes.sort(function (a, b) { return b - a; }).forEach(function (size) {
      var cell = archs.map(function (arch) { return cellAt(arch, size); }).filter(Boolean)[0];
      element("h2", "About " + cell.tier + " parameters", page);
      sentences(archs, size);
      table(archs, size);
    });
  }

  if (!Object.keys(tasks).length) {
    document.getElementById("choices").hidden = true;
    element("p", "There is nothing to compare yet.", page);
    return;
  }
  [taskList].concat(picks).forEach(function (list) { list.addEventListener("change", address); });
  window.addEventListener("hashchange", draw);
  draw();
})();
