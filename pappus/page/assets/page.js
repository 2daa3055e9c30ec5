// The page: builds its parts from the data in it, and keeps them up to date while the run lives.

const RETRY = 3000; // ms between attempts where the browser itself gave up
const RENEWED_EVERY = 20000; // ms between two looks at a folder of runs
const SILENCE = 10000; // ms without news after which the page says so

/** The parts of a page of one run, and what each event of the stream changes. */
class RunPage {
  constructor(run, bar, main) {
    Object.assign(this, { bar, main, waiting: new Set() });
    this.build(run);
    document.addEventListener('visibilitychange', () => {
      if (document.hidden) return;
      this.draw();
      redrawCharts();
    });
  }

  /** All parts anew: at first, and when the program becomes known or the run is sent as a whole. */
  build(run) {
    this.run = run;
    charts.forEach((chart) => chart.remove());
    const makers = {
      head: runHead,
      figure: () => figureSection(run, (kind) => this.parts.roles.open(kind)),
      roles: rolesSection,
      curves: curvesPart,
      lag: lagSection,
      evaluations: evaluationsSection,
      cost: costSection,
      video: videoSection,
      events: eventsSection,
      config: configSection,
    };
    this.parts = Object.fromEntries(Object.entries(makers).map(([name, make]) => [name, partOf(run, name, make)]));
    const { head, figure, roles, curves, lag, evaluations, cost, video, events, config } = this.parts;
    const pair = h(
      'div',
      { class: 'pair' },
      [lag, evaluations, cost, video].map((part) => part.node),
    );
    this.main.replaceChildren(head.node, figure.node, roles.node, curves.node, pair, events.node, config.node);
  }

  /** What came by an event of that name. */
  hear(name, news) {
    HEARD[name](this, news);
  }

  /** Several parts of the run at once: only a program needs another page. */
  change(news) {
    if (news.program) this.build({ ...this.run, ...news });
    else this.refresh(Object.keys(this.parts), news);
  }

  /** Draws once for all news of a moment, and not while nobody looks. */
  refresh(names, news = {}) {
    Object.assign(this.run, news);
    names.forEach((name) => this.waiting.add(name));
    if (!document.hidden) requestAnimationFrame(() => this.draw());
  }

  draw() {
    const names = [...this.waiting];
    this.waiting.clear();
    names.forEach((name) => {
      try {
        this.parts[name].update();
      } catch (error) {
        console.error(`the part ${name} is as it was before: ${error}`);
      }
    });
  }

  /** What the bar says of a run to which nobody listens. */
  say() {
    const { about, summary } = this.run;
    if (about.phase === 'over' || summary)
      this.bar.say(about.exit_reason ? `over: ${about.exit_reason}` : 'over', 'over');
    else this.bar.say('no end is recorded: cut off, or still under way', 'cut');
  }
}

/** A part of the page, or a sentence in its place where it cannot be shown: the others are. */
function partOf(run, name, make) {
  try {
    return make(run);
  } catch (error) {
    console.error(`the part ${name} is left out: ${error}`);
    const sentence = `The part “${name}” of this page cannot be shown: ${error.message}.`;
    return { node: h('p', { class: 'empty' }, sentence), update() {}, open() {} };
  }
}

function curvesPart(run) {
  const curves = curvesSection(run);
  return {
    node: curves.node,
    update() {
      curves.rebuilt();
      curves.changed();
    },
  };
}

/** What each event of the stream changes. */
const HEARD = {
  now: (page, now) => page.refresh(['head', 'figure', 'roles', 'lag', 'cost'], { now }),
  rows: (page, { columns }) => addRows(page.run, columns) && page.refresh(['curves', 'head']),
  curves: (page, curves) => page.refresh(['curves', 'head'], { curves }),
  events: (page, news) => page.refresh(['events'], { events: [...(page.run.events || []), ...news] }),
  phase: (page, about) => page.refresh(['head'], { about }),
  run: (page, run) => page.build(run),
  changes: (page, news) => page.change(news),
  over: (page, news) => page.change(news),
};

/** Listens to the run; says when the connection broke, and connects again from where it was. */
class Listener {
  constructor(page, bar, after) {
    Object.assign(this, { page, bar, after, last: Date.now(), over: false, broken: false });
    this.open();
    setInterval(() => this.tell(), 1000);
    this.tell();
  }

  open() {
    this.source = new EventSource(`events?after=${encodeURIComponent(this.after)}`);
    this.source.onopen = () => {
      this.broken = false;
      this.last = Date.now();
    };
    this.source.onerror = () => {
      this.broken = true;
      if (this.source.readyState === EventSource.CLOSED && !this.over) setTimeout(() => this.open(), RETRY);
    };
    for (const name of Object.keys(HEARD)) {
      this.source.addEventListener(name, (event) => this.hear(name, event));
    }
  }

  hear(name, event) {
    Object.assign(this, { last: Date.now(), broken: false, after: event.lastEventId || this.after });
    this.page.hear(name, JSON.parse(event.data));
    if (name === 'over') {
      this.over = true;
      this.source.close();
    }
    this.tell();
  }

  tell() {
    const silence = Date.now() - this.last;
    if (this.over || this.page.run.about.phase === 'over') this.page.say();
    else if (this.broken)
      this.bar.say(`connection lost ${duration(Math.round(silence / 1000))} ago, trying again`, 'broken');
    else if (silence > SILENCE) this.bar.say(`live, but silent for ${duration(silence / 1000)}`, 'silent');
    else this.bar.say('live', 'live');
  }
}

/** A folder is looked at again now and then, while somebody looks at its page. */
function renewAgain(page, bar) {
  bar.say(`as of ${clockText(Date.now() / 1000)}`, 'live');
  setInterval(async () => {
    if (document.hidden) return;
    try {
      const answer = await fetch('data');
      if (!answer.ok) throw new Error(answer.statusText);
      page.renew((await answer.json()).runs || []);
      bar.say(`as of ${clockText(Date.now() / 1000)}`, 'live');
    } catch {
      bar.say('connection lost, trying again', 'broken');
    }
  }, RENEWED_EVERY);
}

const RUN_LINKS = [
  ['topology', 'Topology'],
  ['roles', 'Roles'],
  ['curves', 'Curves'],
  ['events', 'Events'],
  ['config', 'Config'],
];
const RUNS_LINKS = [
  ['runs', 'Runs'],
  ['curves', 'Curves'],
  ['differences', 'Differences'],
  ['target', 'Target'],
];

function begin() {
  const data = JSON.parse(document.getElementById('pappus-data').textContent);
  const many = data.mode === 'runs';
  const main = document.getElementById('page');
  const bar = topBar(many ? RUNS_LINKS : RUN_LINKS);
  document.body.prepend(bar.node);
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => redrawCharts(true));
  if (many) {
    const page = runsPage(data.runs || []);
    main.append(...page.nodes);
    document.title = 'Runs · Pappus';
    if (data.live && location.protocol !== 'file:') renewAgain(page, bar);
    return;
  }
  const page = new RunPage(data.run, bar, main);
  if (data.live && location.protocol !== 'file:') new Listener(page, bar, data.after || '');
  else page.say();
}

begin();
