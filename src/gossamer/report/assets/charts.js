"use strict";
// What ECharts is to draw, as pure functions of a view: the page's data, what is chosen, colours.

const Charts = (() => {
  const {
    encode, trim, unit, seconds, bits, operations, share, score, round, visible, COLOURS, colour, base,
    axis, told, band, points, line, withError, curves, around, fromZero, extent, zoomed,
  } = Parts;

  const AXES = {
    rounds: { x: "round", name: "round", text: round },
    sent: { x: "sent", name: "bits sent, both directions", text: bits },
    paper: { x: "paper", name: "bits as the papers count, both directions", text: bits },
    training_seconds: { x: "training_seconds", name: "local training, all clients together", text: seconds, unit },
    device_seconds: { x: "device_seconds", name: "time on simulated devices", text: seconds, unit },
    flops: { x: "flops", name: "floating-point operations of all clients", text: operations },
  };

  /** Whether groups end so far apart that only powers of ten show them all. */
  function wide(view, x) {
    const last = view.data.groups.map((group) => (group.evaluated[x] || [0]).at(-1)).filter((end) => end > 0);
    return last.length > 1 && Math.max(...last) / Math.min(...last) > 8;
  }

  function scores(view, name) {
    const which = name === "sent" ? view.chosen.bits : name;
    const chosen = view.chosen.scale;
    const logarithmic = name !== "rounds" && (chosen === "auto" ? wide(view, AXES[which].x) : chosen === "log");
    return { ...AXES[which], table: "evaluated", y: view.chosen.score, range: around, figure: score, logarithmic };
  }

  const byRound = (table, y, range, figure = share) => () =>
    ({ ...AXES.rounds, table, y, range, figure, logarithmic: false });

  /** What the charts of curves show: which figure of which table, against what. */
  const WISHES = {
    rounds: (view) => scores(view, "rounds"),
    sent: (view) => scores(view, "sent"),
    training_seconds: (view) => scores(view, "training_seconds"),
    device_seconds: (view) => scores(view, "device_seconds"),
    flops: (view) => scores(view, "flops"),
    worst: byRound("evaluated", "personal_worst_decile", around, score),
    density: byRound("rounds", "density", fromZero),
    mismatch: byRound("rounds", "mismatch", fromZero),
    client_mismatch: byRound("rounds", "client_mismatch", fromZero),
  };
  const drawn = Object.fromEntries(Object.entries(WISHES).map(([name, wish]) => [name, (view) => curves(view, wish(view))]));

  function histogram(view) {
    const groups = visible(view).filter((group) => group.histogram.length);
    const option = base(view);
    const title = view.data.metric.title;
    const [least, most] = groups.length ? extent(groups.flatMap((group) => group.between)) : [0, 1];
    option.tooltip.formatter = (items) => {
      const lines = items.filter((item) => item.seriesType === "line");
      if (!lines.length) return "";
      const [count, [from, to]] = [lines[0].value[3], lines[0].value[4]];
      const part = Math.min(count - 1, Math.floor(((lines[0].value[0] - from) / (to - from)) * count));
      const end = (place) => trim(from + (place / count) * (to - from));
      const head = `${title} ${end(part)} to ${end(part + 1)}`;
      const text = (value) => `${trim(100 * value, 3)} % of clients`;
      return told(head, lines.map((item) => [item.color, item.seriesName, text(item.value[1])]));
    };
    option.xAxis = axis(view, {
      type: "value", min: least, max: most, name: `${title} on the client's own test data`, splitLine: { show: false },
      axisLine: { show: true, lineStyle: { color: view.theme.line } },
    });
    option.yAxis = axis(view, {
      type: "value", min: 0, axisLabel: { formatter: (value) => `${trim(100 * value, 3)} %` },
    });
    option.series = groups.flatMap((group) => {
      const shares = group.histogram;
      const [from, to] = group.between;
      const row = (x, part) => [from + x * (to - from), part, null, shares.length, group.between];
      const middle = shares.map((part, at) => row((at + 0.5) / shares.length, part));
      const rows = [row(0, shares[0]), ...middle, row(1, shares.at(-1))];
      const paint = colour(view, group.place);
      const worst = (group.evaluated.personal_worst_decile || []).filter((value) => value !== null).at(-1);
      const steps = line(view, group, rows, {
        step: "middle", showSymbol: false, areaStyle: { color: paint, opacity: groups.length > 3 ? 0.05 : 0.15 },
      });
      const mark = {
        type: "scatter", name: group.label, data: worst === undefined ? [] : [[worst, 0]], symbol: "triangle",
        symbolSize: [11, 10], symbolOffset: [0, -5], itemStyle: { color: paint, borderColor: view.theme.paper, borderWidth: 1 },
        z: 5, silent: true, tooltip: { show: false },
      };
      return [steps, mark];
    });
    return option;
  }

  const ARROWS = { down: "↓ down", up: "↑ up" };
  const LEAVES = 7;

  /** One bar for each direction of each group: its leaves, the largest first. */
  function bars(view) {
    return visible(view).flatMap((group) => ["down", "up"].flatMap((direction) => {
      const entries = group.ledger.filter((entry) => entry[0] === direction);
      const column = view.chosen.bits === "paper" ? 3 : 2;
      const leaves = entries.map((entry) => [entry[1], entry[column]]).sort((one, other) => other[1] - one[1]);
      const rest = leaves.slice(LEAVES).reduce((sum, leaf) => sum + leaf[1], 0);
      const kept = leaves.slice(0, LEAVES);
      if (rest) kept.push(["all others", rest]);
      const total = kept.reduce((sum, leaf) => sum + leaf[1], 0);
      return entries.length ? [{ group, direction, leaves: kept, total }] : [];
    }));
  }

  /** The colour of a group, paler for every smaller leaf. */
  const tint = (view, group, depth) =>
    echarts.color.modifyAlpha(colour(view, group.place), Math.max(0.2, 1 - 0.3 * depth));

  function ledger(view) {
    const rows = bars(view);
    const parts = view.chosen.ledger === "share";
    const most = parts ? 1 : Math.max(0, ...rows.map((row) => row.total));
    const option = base(view);
    option.grid = { ...option.grid, top: 4 };
    option.tooltip.axisPointer = { type: "shadow" };
    option.tooltip.formatter = (items) => {
      const row = rows[items[0].dataIndex];
      const text = (value) => `${bits(value)} <small>${trim(row.total ? (100 * value) / row.total : 0, 3)} %</small>`;
      const head = `${encode(row.group.label)} ${ARROWS[row.direction]}`;
      return told(head, row.leaves.map(([name, value], depth) => [tint(view, row.group, depth), name, text(value)]));
    };
    option.xAxis = axis(view, {
      type: "value", min: 0, max: parts ? 1 : undefined, splitNumber: view.width < 420 ? 2 : 5,
      axisLabel: { formatter: (value) => (parts ? `${trim(100 * value)} %` : bits(value, 3)) },
    });
    option.yAxis = axis(view, {
      type: "category",
      inverse: true,
      data: rows.map((row) => `${row.group.label}  ${ARROWS[row.direction]}  ${bits(row.total)}`),
      splitLine: { show: false },
      axisLabel: {
        inside: true, color: view.theme.ink, fontSize: 12, verticalAlign: "bottom", padding: [0, 0, 11, -6],
        interval: 0, hideOverlap: false,
      },
      z: 10,
    });
    const deepest = Math.max(0, ...rows.map((row) => row.leaves.length));
    option.series = Array.from({ length: deepest }, (_, depth) => ({
      type: "bar",
      stack: "leaves",
      barWidth: 15,
      barCategoryGap: "0%",
      itemStyle: { borderColor: view.theme.paper, borderWidth: 1 },
      emphasis: { disabled: true },
      data: rows.map((row) => {
        const [, value] = row.leaves[depth] || ["", 0];
        const size = parts ? (row.total ? value / row.total : 0) : value;
        return { value: size, itemStyle: { color: tint(view, row.group, depth) } };
      }),
      label: {
        show: true, position: "insideLeft", fontSize: 10, color: depth < 2 ? view.theme.paper : view.theme.ink,
        formatter: (item) => {
          const [name] = rows[item.dataIndex].leaves[depth] || [""];
          return most && (item.value / most) * view.width > 7 * name.length + 20 ? name : "";
        },
      },
    }));
    return option;
  }

  const ledgerHeight = (view) => 44 + 38 * Math.max(1, bars(view).length);

  /** How many panels stand side by side: as many as fit, evenly spread over the lines. */
  function across(count, width) {
    const most = Math.max(2, Math.min(6, Math.floor(width / 210)));
    return Math.max(2, Math.ceil(count / Math.ceil(count / most)));
  }
  const PANEL = 148;

  function layersHeight(view) {
    const count = view.data.layers.length;
    return PANEL * Math.ceil(count / across(count, view.width));
  }

  /** A small panel for each layer, with the curves of all groups. */
  function layers(view) {
    const names = view.data.layers;
    const columns = across(names.length, view.width);
    const gap = 14;
    const width = (view.width - gap * (columns - 1)) / columns;
    const option = base(view);
    const figure = view.chosen.layer;
    const place = (at) => ({ left: (at % columns) * (width + gap), top: Math.floor(at / columns) * PANEL });
    option.title = names.map((name, at) => ({
      ...place(at), text: name, padding: [4, 0],
      textStyle: { fontSize: 11, fontWeight: 600, color: view.theme.ink, width: width - 8, overflow: "truncate" },
    }));
    option.grid = names.map((_, at) => ({
      left: place(at).left, top: place(at).top + 28, width: width - 8, height: PANEL - 44,
      outerBoundsMode: "same", outerBoundsContain: "axisLabel",
    }));
    const known = visible(view).map((group) => [
      group, names.map((name) => points((group.layers[name] || {})[figure] || { round: [] }, "round", figure, false)),
    ]);
    const last = extent([1, ...known.flatMap(([, each]) => each.flatMap((rows) => rows.map((row) => row[0])))])[1];
    option.xAxis = names.map((_, at) => axis(view, {
      type: "value", gridIndex: at, min: 0, max: last, splitNumber: 2, minInterval: 1, splitLine: { show: false },
      axisLine: { show: true, lineStyle: { color: view.theme.line } }, axisLabel: { fontSize: 10 },
    }));
    option.yAxis = names.map((_, at) => {
      const heights = fromZero(known.map(([, each]) => each[at]));
      return axis(view, { type: "value", gridIndex: at, splitNumber: 2, axisLabel: { fontSize: 10 }, ...heights });
    });
    option.series = known.flatMap(([group, each]) => each.flatMap((rows, at) => {
      const where = { xAxisIndex: at, yAxisIndex: at };
      const drawn = band(view, group, rows).map((series) => ({ ...series, ...where }));
      return [...drawn, line(view, group, rows, { ...where, showSymbol: rows.length === 1 })];
    }));
    option.tooltip.formatter = (items) => {
      const lines = items.filter((item) => item.seriesType === "line");
      if (!lines.length) return "";
      const head = `${encode(names[lines[0].axisIndex])} · round ${lines[0].value[0]}`;
      return told(head, lines.map((item) => [item.color, item.seriesName, withError(item.value, share)]));
    };
    return option;
  }

  const LEGEND = { left: 58, item: 39, line: 20 };

  /** How high the legend of a partition's classes is: none if there are more classes than colours. */
  function legendHeight(view, which) {
    const classes = view.data.partitions[which].counts[0].length;
    const fit = Math.max(1, Math.floor((view.width - LEGEND.left) / LEGEND.item));
    return classes <= view.theme.classes.length ? LEGEND.line * Math.ceil(classes / fit) : 0;
  }

  const partitionHeight = (view, which) => 344 + legendHeight(view, which);

  /** Examples of each client by class above, and what part of its own each class is below. */
  function partition(view, which) {
    const { clients, counts } = view.data.partitions[which];
    const classes = counts[0].length;
    const above = legendHeight(view, which);
    const coloured = above > 0;
    const labels = Array.from({ length: classes }, (_, label) => String(label));
    const sizes = counts.map((row) => row.reduce((sum, count) => sum + count, 0));
    const option = base(view);
    const outer = { left: 58, right: 4, outerBoundsMode: "none" };
    option.grid = [{ ...outer, top: above + 8, height: 110 }, { ...outer, top: above + 130, bottom: 48 }];
    if (coloured) {
      const text = { fontSize: 11, color: view.theme.faint };
      option.title = { text: "class", left: 22, top: 0, padding: [4, 0], textStyle: { ...text, fontWeight: 400 } };
      option.legend = {
        data: labels, left: LEGEND.left, right: 0, top: 0, padding: 0, itemWidth: 11, itemHeight: 11, itemGap: 9,
        selectedMode: false, icon: "rect", textStyle: { ...text, color: view.theme.ink, width: 14 },
      };
    }
    option.tooltip.axisPointer.type = "shadow";
    option.tooltip.trigger = "item";
    option.tooltip.formatter = (item) => {
      const at = item.seriesType === "heatmap" ? item.value[0] : item.dataIndex;
      const rows = counts[at].map((count, label) => [count, label]).filter(([count]) => count);
      const most = rows.sort((one, other) => other[0] - one[0] || one[1] - other[1]).slice(0, 10);
      const paint = (label) => (coloured ? view.theme.classes[label] : view.theme.colours[0]);
      const head = `client ${clients[at]} · ${sizes[at]} examples`;
      return told(head, most.map(([count, label]) => [paint(label), `class ${label}`, String(count)]));
    };
    const across = (at, more) => axis(view, {
      type: "category", gridIndex: at, data: clients.map(String), splitLine: { show: false }, splitArea: { show: false }, ...more,
    });
    option.xAxis = [
      across(0, { axisLabel: { show: false } }),
      across(1, { name: "client", nameLocation: view.width < 420 ? "start" : "middle" }),
    ];
    option.yAxis = [
      axis(view, { type: "value", gridIndex: 0, splitNumber: 3, name: "examples", nameGap: 44 }),
      axis(view, {
        type: "category", gridIndex: 1, name: "class", nameGap: 44, splitLine: { show: false },
        data: labels,
      }),
    ];
    const layers = coloured ? labels : [null];
    const stacked = layers.map((label) => ({
      type: "bar", name: label === null ? "all classes" : label, stack: "classes", xAxisIndex: 0, yAxisIndex: 0, barCategoryGap: clients.length > 80 ? "0%" : "14%",
      emphasis: { disabled: true },
      itemStyle: { color: label === null ? view.theme.colours[0] : view.theme.classes[label] },
      data: label === null ? sizes : counts.map((row) => row[label]),
    }));
    const cells = counts.flatMap((row, at) => row.map((count, label) => [at, label, sizes[at] ? count / sizes[at] : 0]));
    option.series = [...stacked, {
      type: "heatmap", xAxisIndex: 1, yAxisIndex: 1, data: cells, progressive: 0, emphasis: { disabled: true },
    }];
    const most = extent([1e-9, ...cells.map((cell) => cell[2])])[1];
    option.visualMap = {
      seriesIndex: stacked.length, dimension: 2, min: 0, max: most, orient: "horizontal", right: 4, bottom: 0,
      itemWidth: 9, itemHeight: 70, hoverLink: false, padding: 0, textGap: 6,
      text: [`${trim(100 * most, 3)} %`, view.width < 420 ? "0 %" : "of the client’s examples: 0 %"],
      textStyle: { fontSize: 11, color: view.theme.faint },
      inRange: { color: [view.theme.ground, view.theme.colours[0]] },
    };
    return option;
  }

  const OPTIONS = { ...drawn, histogram, ledger, layers, partition };

  /** Whether a chart has so many shapes that they are better painted than kept one by one. */
  function many(view, name, which) {
    if (name !== "partition") return false;
    const { counts } = view.data.partitions[which];
    return counts.length * counts[0].length > 3000;
  }

  return {
    many,
    wishes: WISHES,
    option: (view, name, which) => zoomed(OPTIONS[name](view, which), view.zoom),
    heights: { ledger: ledgerHeight, layers: layersHeight, partition: partitionHeight },
    wide: (view) => bars(view).length > 1 && (() => {
      const totals = bars(view).map((row) => row.total).filter((total) => total > 0);
      return Math.max(...totals) / Math.min(...totals) > 30;
    })(),
    colours: COLOURS,
  };
})();
