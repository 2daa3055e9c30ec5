// What the page knows of a run, and how it changes while the run lives.

const MOST_ROWS = 4000; // more are thinned to half: a screen shows no more
const LONG_SILENCE = 10; // seconds without a report

/** Kinds of roles in the order of the program, each with its members. */
function kindsOf(run) {
  const program = run.program;
  if (!program) return [];
  return program.kinds
    .map((kind) => ({ ...kind, roles: program.roles.filter((role) => role.kind === kind.name) }))
    .filter((kind) => kind.roles.length);
}

function roleNow(run, name) {
  return (run.now && run.now.roles[name]) || null;
}

const PARTS = [
  ['computing', 'computing'],
  ['queued', 'waiting for a core'],
  ['asleep', 'asleep or waiting for something outside'],
  ['other', 'busy, not divided further'],
  ['waiting', 'waiting for other roles'],
];

/** Shares of a role's time, which sum to at most 1. Who waits for a core may have been woken from a wait for others. */
function partsOf(now) {
  if (!now) return null;
  const waiting = clamp(sum(Object.values(now.waiting || {})), 0, 1);
  const busy = clamp(now.busy || 0, 0, 1);
  const inner = ['computing', 'queued', 'asleep'].map((name) => (known(now[name]) ? Math.max(0, now[name]) : 0));
  const total = sum(inner);
  const scale = total > 1 ? 1 / total : 1;
  const [computing, queued, asleep] = inner.map((share) => share * scale);
  const unexplained = Math.max(0, busy - computing - queued - asleep);
  const fits = clamp(waiting, 0, 1 - Math.min(1, computing + queued + asleep + unexplained));
  return { computing, queued, asleep, other: unexplained, waiting: fits };
}

/** The mean of several roles' parts. */
function meanParts(nows) {
  const all = nows.map(partsOf).filter(Boolean);
  if (!all.length) return null;
  return Object.fromEntries(PARTS.map(([name]) => [name, sum(all.map((parts) => parts[name])) / all.length]));
}

/** What roles wait for, the longest first: [what, share]. */
function waitsOf(nows) {
  const shares = new Map();
  for (const now of nows) {
    for (const [what, share] of Object.entries(now.waiting || {}))
      shares.set(what, (shares.get(what) || 0) + share / nows.length);
  }
  return [...shares].filter(([, share]) => share >= 0.005).sort((one, other) => other[1] - one[1]);
}

function waitsText(nows, most = 2) {
  return waitsOf(nows)
    .slice(0, most)
    .map(([what, share]) => `${what} ${percent(share)}`)
    .join(', ');
}

function silent(now) {
  return Boolean(now) && known(now.silent_seconds) && now.silent_seconds > LONG_SILENCE;
}

/** `process 4121`, and the node and the device where they say something. */
function placeOf(now) {
  if (!now) return '';
  const device = now.device && now.device !== 'cpu' ? now.device : '';
  return [now.pid ? `process ${now.pid}` : '', now.node ? `on ${now.node}` : '', device].filter(Boolean).join(' · ');
}

/** Where the roles of a kind live, in few words. */
function placesOf(nows) {
  if (nows.length === 1) return placeOf(nows[0]);
  const processes = new Set(nows.filter((now) => now.pid).map((now) => `${now.node}/${now.pid}`)).size;
  const nodes = new Set(nows.map((now) => now.node).filter(Boolean));
  const devices = new Set(nows.map((now) => now.device).filter((device) => device && device !== 'cpu'));
  const on = nodes.size === 1 ? `on ${[...nodes][0]}` : nodes.size ? `on ${nodes.size} nodes` : '';
  return [processes ? plural(processes, 'process', 'processes') : '', on, [...devices].join(', ')]
    .filter(Boolean)
    .join(' · ');
}

function columnsOf(run) {
  return (run.curves && run.curves.columns) || {};
}

/** Whether a curve has anything to draw. */
function hasCurve(run, name) {
  const column = columnsOf(run)[name];
  return Boolean(column) && column.some(known);
}

function lastKnown(values) {
  for (let i = (values || []).length - 1; i >= 0; i -= 1) if (known(values[i])) return values[i];
  return null;
}

/** Appends rows; those that came before are left out, so that a reconnect may send them again. */
function addRows(run, columns) {
  const mine = columnsOf(run);
  const times = columns.time || [];
  const newest = lastKnown(mine.time) ?? -Infinity;
  const fresh = times.map((time, i) => (known(time) && time > newest ? i : -1)).filter((i) => i >= 0);
  if (!fresh.length) return false;
  const before = (mine.time || []).length;
  for (const name of new Set([...Object.keys(mine), ...Object.keys(columns)])) {
    mine[name] = mine[name] || new Array(before).fill(null);
    fresh.forEach((i) => mine[name].push(columns[name] ? (columns[name][i] ?? null) : null));
  }
  if (mine.time.length > MOST_ROWS) thin(mine);
  return true;
}

/** Leaves out every second row of the older half, and keeps the newest. */
function thin(columns) {
  const length = columns.time.length;
  for (const name of Object.keys(columns))
    columns[name] = columns[name].filter((_, i) => i % 2 === 1 || i >= length / 2);
}

/** Seconds that the run has taken, all its parts together; of a run that does not say so, seconds since it began. */
function elapsed(run) {
  const { time: times = [], 'cost/wall_seconds': taken = [] } = columnsOf(run);
  if (taken.length && taken.every(known)) return taken;
  const began = Math.min(...[run.about.began, times.find(known)].filter(known)); // a part that resumes begins anew
  return times.map((time) => (known(time) ? time - began : null));
}

/** The value at `x` of a line through points; the ends hold beyond them. */
function interpolate(xs, ys, x) {
  if (!xs.length) return null;
  if (x <= xs[0]) return ys[0];
  let low = 0;
  let high = xs.length - 1;
  if (x >= xs[high]) return ys[high];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= x) low = middle;
    else high = middle;
  }
  const width = xs[high] - xs[low];
  return width ? ys[low] + ((x - xs[low]) / width) * (ys[high] - ys[low]) : ys[high];
}

/** Points that are known, in order of x, one for each x: the newest. */
function points(xs, ys) {
  const found = [[], []];
  for (let i = 0; i < xs.length; i += 1) {
    if (!known(xs[i]) || !known(ys[i])) continue;
    const last = found[0].length - 1;
    if (last >= 0 && xs[i] <= found[0][last]) {
      if (xs[i] === found[0][last]) found[1][last] = ys[i];
      continue;
    }
    found[0].push(xs[i]);
    found[1].push(ys[i]);
  }
  return found;
}

/** An exponential mean that starts without bias; unknown values stay unknown. */
function smoothed(values, weight) {
  if (!weight) return values;
  let mean = 0;
  let mass = 0;
  return values.map((value) => {
    if (!known(value)) return null;
    mean = weight * mean + (1 - weight) * value;
    mass = weight * mass + (1 - weight);
    return mean / mass;
  });
}

const T_975 = [
  12.71, 4.3, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.2, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.1, 2.09, 2.09,
];

/** Mean of several values and its 95 % interval (Student's t); no interval of one value. */
function meanInterval(values) {
  const mean = sum(values) / values.length;
  if (values.length < 2) return { mean, low: null, high: null };
  const variance = sum(values.map((value) => (value - mean) ** 2)) / (values.length - 1);
  const half = (T_975[values.length - 2] || 1.98) * Math.sqrt(variance / values.length);
  return { mean, low: mean - half, high: mean + half };
}
