// The page: builds its parts from the data in it, and keeps them up to date while the run lives.

const RETRY = 3000; // ms between attempts where the browser itself gave up
const SILENCE = 10000; // ms without news after which the page says so

/** Parts of a page of one run, and what each event of the stream changes. */
function runPage(run, bar) {
  const head = runHead(run);
  const roles = rolesSection(run);
  const figurePart = figureSection(run, (kind) => roles.open(kind));
  const curves = curvesSection(run);
  const others = { lag: lagSection(run), cost: costSection(run), evaluations: evaluationsSection(run), video: videoSection(run), events: eventsSection(run), config: configSection(run) };
  const side = h('div', { class: 'pair' }, others.lag.node, others.evaluations.node, others.cost.node, others.video.node);
  const nodes = [head.node, figurePart.node, roles.node, curves.node, side, others.events.node, others.config.node];
  const all = [head, figurePart, roles, ...Object.values(others)];
  const waiting = new Set();

  /** Draws once for all news of a moment, and not while nobody looks. */
  function refresh(...parts) {
    parts.forEach((part) => waiting.add(part));
    if (!document.hidden) requestAnimationFrame(drawWaiting);
  }

  function drawWaiting() {
    waiting.forEach((part) => part.update());
    waiting.clear();
  }

  document.addEventListener('visibilitychange', () => {
    if (document.hidden) return;
    drawWaiting();
    redrawCharts();
  });
  const curvesPart = { update() { curves.rebuilt(); curves.changed(); } };
  const heard = {
    now(now) { run.now = now; refresh(head, figurePart, roles, others.lag, others.cost); },
    rows({ columns }) { if (addRows(run, columns)) refresh(curvesPart, head); },
    events(events) { run.events = [...(run.events || []), ...events]; refresh(others.events); },
    phase(about) { run.about = about; refresh(head); },
    over(changes) { Object.assign(run, changes); refresh(...all, curvesPart); },
  };
  return { nodes, heard, say: () => said(run, bar) };
}

/** What the bar says of a run that is not connected. */
function said(run, bar) {
  const { about } = run;
  if (about.phase === 'over' || run.summary) bar.say(`over${about.exit_reason ? `: ${about.exit_reason}` : ''}`, 'over');
  else bar.say('a run that was cut off, or is under way elsewhere', 'cut');
}

/** Listens to the run; says when the connection broke, and connects again. */
function listen(page, run, bar) {
  let last = Date.now();
  let source = null;
  let over = false;
  let broken = false;

  function open() {
    source = new EventSource(`${location.pathname.replace(/\/+$/, '')}/events`);
    source.onopen = () => { broken = false; last = Date.now(); tell(); };
    source.onerror = () => {
      broken = true;
      tell();
      if (source.readyState === EventSource.CLOSED && !over) setTimeout(open, RETRY);
    };
    for (const [name, hear] of Object.entries(page.heard)) {
      source.addEventListener(name, (event) => {
        last = Date.now();
        broken = false;
        hear(JSON.parse(event.data));
        if (name === 'over') {
          over = true;
          source.close();
        }
        tell();
      });
    }
  }

  function tell() {
    const silence = Date.now() - last;
    if (over || run.about.phase === 'over') page.say();
    else if (broken) bar.say(`connection lost ${duration(silence / 1000)} ago, trying again`, 'broken');
    else if (silence > SILENCE) bar.say(`live, but silent for ${duration(silence / 1000)}`, 'silent');
    else bar.say('live', 'live');
  }

  open();
  setInterval(() => { if (!over) tell(); }, 1000);
  tell();
}

function begin() {
  const data = JSON.parse(document.getElementById('pappus-data').textContent);
  const many = data.mode === 'runs';
  const bar = topBar(many
    ? [['runs', 'Runs'], ['curves', 'Curves'], ['differences', 'Differences'], ['target', 'Target']]
    : [['topology', 'Topology'], ['roles', 'Roles'], ['curves', 'Curves'], ['events', 'Events'], ['config', 'Config']]);
  const main = document.getElementById('page');
  document.body.prepend(bar.node);
  if (many) {
    main.append(...runsPage(data.runs || []));
    document.title = 'Runs · Pappus';
    return;
  }
  const page = runPage(data.run, bar);
  main.append(...page.nodes);
  if (data.live && location.protocol !== 'file:') listen(page, data.run, bar);
  else page.say();
}

matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => redrawCharts(true));
begin();
