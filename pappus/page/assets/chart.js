// A card with curves: drawn by uPlot while it can be seen, with values under the pointer, and a log scale.

class Chart {
  /** `read()` returns lines: {label, x, y, low, high, dots, colour}; x ascends, unknown values are null. `format` makes
   * values text. */
  constructor({ title, note = '', read, wide = false, close = null, format = figure }) {
    Object.assign(this, {
      title,
      read,
      wide,
      format,
      visible: false,
      dirty: true,
      log: false,
      zoomed: false,
      plot: null,
    });
    this.legend = h('div', { class: 'legend' });
    this.canvas = h('div', { class: 'plot', tabindex: '0', role: 'img', onkeydown: (event) => this.key(event) });
    this.canvas.chart = this;
    this.empty = h('p', { class: 'empty', hidden: true });
    const tools = h(
      'span',
      { class: 'card-tools' },
      toggle(
        'log',
        false,
        (on) => {
          this.log = on;
          this.changed(true);
        },
        { 'aria-label': `${title}: log scale`, title: 'logarithmic scale' },
      ),
      toggle(
        'wide',
        wide,
        (on) => {
          this.wide = on;
          this.widen();
        },
        { class: 'toggle only-wide', 'aria-label': `${title}: whole width`, title: 'whole width' },
      ),
      close &&
        h(
          'button',
          { type: 'button', class: 'toggle', 'aria-label': `remove ${title}`, title: 'remove', onclick: close },
          '×',
        ),
    );
    const head = h('figcaption', {}, h('span', { class: 'card-title', title: note }, title), tools);
    this.node = h('figure', { class: 'card chart' }, head, this.legend, this.canvas, this.empty);
    this.widen();
    charts.add(this);
    seen.observe(this.canvas);
    sized.observe(this.canvas);
  }

  remove() {
    charts.delete(this);
    seen.unobserve(this.canvas);
    sized.unobserve(this.canvas);
    if (this.plot) this.plot.destroy();
    this.node.remove();
  }

  get height() {
    return this.wide ? WIDE_HEIGHT : CHART_HEIGHT;
  }

  widen() {
    this.node.classList.toggle('wide', this.wide);
    this.canvas.style.setProperty('height', `${this.height}px`);
    this.changed(true);
  }

  changed(rebuild = false) {
    this.dirty = true;
    this.rebuild = this.rebuild || rebuild;
    if (this.visible) this.draw();
  }

  fit() {
    if (this.plot) this.plot.setSize({ width: this.canvas.clientWidth, height: this.height });
    else if (this.visible) this.draw();
  }

  draw() {
    if (!this.dirty || !this.canvas.clientWidth || document.hidden || !window.uPlot) return;
    this.dirty = false;
    this.lines = this.layers(this.read().filter((line) => line.y.some(known)));
    const data = this.aligned();
    const drawable = this.lines.length && data[0].length > 0;
    this.empty.hidden = Boolean(drawable);
    if (!drawable)
      setText(this.empty, this.log ? 'no positive values for a logarithmic scale' : 'nothing measured yet');
    const shape = JSON.stringify([this.lines.map((line) => [line.label, line.role]), this.log, curveView.x, this.wide]);
    if (!this.plot || this.rebuild || shape !== this.shape) this.build(data);
    else if (!this.zoomed) this.plot.setData(data);
    else {
      const { min, max } = this.plot.scales.x;
      this.plot.batch(() => {
        this.plot.setData(data);
        this.plot.setScale('x', { min, max });
      });
    }
    if (!this.plot.cursor.idx) this.show(null);
    this.shape = shape;
    this.rebuild = false;
    this.canvas.setAttribute('aria-label', this.summary());
  }

  /** Lines as they are drawn: bands, raw values behind smoothed ones, and the lines themselves. */
  layers(lines) {
    const found = [];
    lines.forEach((line, i) => {
      const colour = line.colour ?? i;
      const y = this.log ? line.y.map((value) => (value > 0 ? value : null)) : line.y;
      const one = { ...line, y, colour, dash: DASHES[Math.floor(colour / SERIES_COLOURS) % DASHES.length] };
      if (line.low) {
        for (const side of ['high', 'low']) {
          const edge = smoothed(line[side], line.dots ? 0 : curveView.smoothing).map((value) =>
            this.log && !(value > 0) ? null : value,
          );
          found.push({ ...one, y: edge, role: side });
        }
      }
      if (line.dots) return found.push({ ...one, role: 'dots' });
      const raw = curveView.smoothing && !line.low && lines.length <= FAINT_LINES;
      if (raw) found.push({ ...one, role: 'raw' });
      return found.push({ ...one, y: smoothed(y, curveView.smoothing), role: 'line' });
    });
    return found;
  }

  /** One column of x and one for each layer. */
  aligned() {
    if (!this.lines.length) return [[]];
    if (this.lines.every((line) => line.x === this.lines[0].x))
      return [this.lines[0].x, ...this.lines.map((line) => line.y)];
    return uPlot.join(this.lines.map((line) => [line.x, line.y]));
  }

  build(data) {
    if (this.plot) this.plot.destroy();
    this.zoomed = false;
    const text = colourOf('muted');
    const axis = {
      stroke: text,
      font: '11px system-ui, sans-serif',
      grid: { stroke: colourOf('grid'), width: 1 },
      ticks: { show: false },
    };
    this.plot = new uPlot(
      {
        width: this.canvas.clientWidth,
        height: this.height,
        padding: [8, 18, 0, 0],
        legend: { show: false },
        cursor: {
          sync: { key: hovering.key, scales: ['x', null] },
          y: false,
          drag: { x: true, y: false },
          points: { size: 6 },
        },
        scales: { x: { time: false }, y: this.log ? { distr: 3 } : { range: (plot, low, high) => roomy(low, high) } },
        axes: [
          { ...axis, size: 26, space: 64, values: (plot, values) => values.map((value) => xText(value)) },
          {
            ...axis,
            size: 48,
            space: 34,
            values: (plot, values) => values.map((value) => (value === null ? '' : this.format(value))),
          },
        ],
        series: [{}, ...this.lines.map((line) => seriesOf(line))],
        bands: this.lines.flatMap((line, i) =>
          line.role === 'high' ? [{ series: [i + 1, i + 2], fill: faded(seriesColour(line.colour), 0.18) }] : [],
        ),
        hooks: {
          setCursor: [(plot) => this.show(plot.cursor.idx)],
          setSelect: [
            (plot) => {
              this.zoomed = plot.select.width > 0;
            },
          ],
        },
      },
      data,
      this.canvas,
    );
    this.plot.over.addEventListener('dblclick', () => {
      this.zoomed = false;
    });
  }

  /** The legend, with the values at an index or, without one, the newest. */
  show(index) {
    const named = this.lines
      .map((line, i) => [line, i])
      .filter(([line]) => line.role === 'line' || line.role === 'dots');
    if (this.legend.childElementCount !== named.length + 1) {
      this.legend.replaceChildren(
        ...named.map(() => h('span', { class: 'key' }, h('i'), h('span'), h('b'))),
        h('span', { class: 'at' }),
      );
    }
    named.forEach(([line, i], place) => {
      const values = this.plot.data[i + 1];
      const value = known(index) ? near(values, index) : lastKnown(values);
      const [mark, label, number] = this.legend.children[place].children;
      mark.className = line.dots ? 'dot' : `dash-${Math.floor(line.colour / SERIES_COLOURS) % DASHES.length}`;
      mark.style.setProperty('--colour', `var(--series-${(line.colour % SERIES_COLOURS) + 1})`);
      setText(label, line.label);
      setText(number, this.format(value));
    });
    setText(
      this.legend.lastChild,
      known(index) && known(this.plot.data[0][index]) ? `at ${xText(this.plot.data[0][index])}` : '',
    );
  }

  summary() {
    const lines = this.lines.filter((line) => line.role === 'line' || line.role === 'dots');
    const said = lines.slice(0, 6).map((line) => {
      const values = line.y.filter(known);
      const [low, high] = [Math.min(...values), Math.max(...values)];
      return `${line.label}: now ${this.format(lastKnown(values))}, from ${this.format(low)} to ${this.format(high)}`;
    });
    return `${this.title}. ${said.join('; ') || 'nothing yet'}`;
  }

  /** Left and right move along the curves. */
  key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || !this.plot || !this.plot.data[0].length) return;
    event.preventDefault();
    const xs = this.plot.data[0];
    const by = step * Math.max(1, Math.round(xs.length / 100));
    const index = clamp((this.plot.cursor.idx ?? (step > 0 ? -1 : xs.length)) + by, 0, xs.length - 1);
    this.plot.setCursor({ left: this.plot.valToPos(xs[index], 'x'), top: 10 });
  }
}
