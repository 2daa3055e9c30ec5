// What all charts share: the x axis, colours, ranges, and when they are drawn.

const SERIES_COLOURS = 8;
const FAINT_LINES = 4; // more lines than these are shown smoothed only
const DASHES = [[], [6, 4], [2, 3]];
const CHART_HEIGHT = 200;
const WIDE_HEIGHT = 300;

/** What holds for all curves: the x axis, and how much is smoothed. */
const curveView = { x: choices.get('x', 'step'), smoothing: choices.get('smoothing', 0) };
const charts = new Set();
const hovering = window.uPlot && uPlot.sync('pappus');

const seen = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) {
      const chart = entry.target.chart;
      chart.visible = entry.isIntersecting;
      if (chart.visible) chart.draw();
    }
  },
  { rootMargin: '150px' },
);

const sized = new ResizeObserver((entries) => entries.forEach((entry) => entry.target.chart.fit()));

/** Every chart is drawn anew, at once or when it comes into view. */
function redrawCharts(rebuild = false) {
  for (const chart of charts) chart.changed(rebuild);
}

window.addEventListener('beforeprint', () => charts.forEach((chart) => chart.draw()));

/** The value that a colour of the style sheet has in this theme. */
function colourOf(name) {
  const probe = h('span', { class: 'probe', style: { color: `var(--${name})` } });
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}

function seriesColour(index) {
  return colourOf(`series-${(index % SERIES_COLOURS) + 1}`);
}

function faded(colour, alpha) {
  const [red, green, blue] = colour.match(/[\d.]+/g);
  return `rgba(${red}, ${green}, ${blue}, ${alpha})`;
}

function seriesOf(line) {
  const colour = seriesColour(line.colour);
  if (line.role === 'dots') {
    return {
      stroke: faded(colour, 0.6),
      width: 1,
      spanGaps: true,
      points: { show: true, size: 9, fill: colour, stroke: colourOf('card'), width: 1 },
    };
  }
  const hidden = line.role === 'high' || line.role === 'low';
  const stroke = hidden ? 'transparent' : faded(colour, line.role === 'raw' ? 0.28 : 1);
  const few = line.y.length <= 2;
  return {
    stroke,
    width: line.role === 'raw' || hidden ? 1 : 2,
    dash: line.dash,
    spanGaps: true,
    points: { show: few && !hidden },
  };
}

/** The value at an index, or the nearest before it. */
function near(values, index) {
  for (let i = Math.min(index, values.length - 1); i >= 0; i -= 1) if (known(values[i])) return values[i];
  return null;
}

/** A range with a little room around it; 0 belongs to it where it is near. */
function roomy(low, high) {
  if (!known(low) || !known(high)) return [0, 1];
  const least = 0.05 * Math.abs(high) || 1; // what hardly moves is not blown up
  const room = Math.max(0.06 * (high - low), (least - (high - low)) / 2);
  return [low >= 0 && low < 0.6 * high ? 0 : low - room, high + room];
}

/** A place on the x axis as text. */
function xText(value) {
  return curveView.x === 'time' ? axisDuration(value) : figure(value);
}

function axisDuration(seconds) {
  const size = Math.abs(seconds);
  if (size >= 86400) return `${trimmed(seconds / 86400)} d`;
  if (size >= 5400) return `${trimmed(seconds / 3600)} h`;
  if (size >= 90) return `${trimmed(seconds / 60)} min`;
  return `${trimmed(seconds)} s`;
}
