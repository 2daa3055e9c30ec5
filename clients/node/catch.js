// A simulator in JavaScript: catch the ball that falls through a field of 10 × 5 squares.
//
//   pappus serve seed-vtrace --env-spec clients/node/catch.yaml --listen 127.0.0.1:5000
//   node clients/node/catch.js 127.0.0.1:5000

'use strict';

const {Client, RunOver} = require('./pappus-client.js');

const ROWS = 10;
const COLUMNS = 5;

class Catch {
  constructor() {
    this.begin();
  }

  begin() {
    this.ballColumn = Math.floor(Math.random() * COLUMNS);
    this.ballRow = 0;
    this.paddle = Math.floor(COLUMNS / 2);
    this.over = false;
  }

  // Actions: 0 left, 1 stay, 2 right. The ball is caught (1) or missed (-1) in the last row.
  step(action) {
    if (this.over) {
      this.begin();
      return {observation: this.observe(), kind: 'first'};
    }
    this.paddle = Math.min(COLUMNS - 1, Math.max(0, this.paddle + action - 1));
    this.ballRow += 1;
    this.over = this.ballRow === ROWS - 1;
    if (!this.over) return {observation: this.observe(), kind: 'running', reward: 0};
    const caught = this.paddle === this.ballColumn;
    return {observation: this.observe(), kind: 'terminated', reward: caught ? 1 : -1, metrics: {caught: Number(caught)}};
  }

  observe() {
    const squares = new Float32Array(2 * COLUMNS + 1);
    squares[this.ballColumn] = 1;
    squares[COLUMNS + this.paddle] = 1;
    squares[2 * COLUMNS] = this.ballRow / ROWS;
    return squares;
  }
}

async function main(address, count = 32) {
  const games = Array.from({length: count}, () => new Catch());
  const observation = {observation: ['float32', [2 * COLUMNS + 1]]};
  const client = new Client(address, observation, ['int64', []], {envs: count, name: 'catch', patience: 5});
  let actions = await client.act(games.map((game) => ({observation: game.observe(), kind: 'first'})));
  for (;;) actions = await client.act(games.map((game, i) => game.step(actions[i])));
}

main(process.argv[2]).catch((error) => {
  if (error instanceof RunOver) {
    console.log(`catch: ${error.message}`);
    process.exit(0);
  }
  console.error(`catch: ${error.message}`);
  process.exit(1);
});
