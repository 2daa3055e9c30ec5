// A simulator's line to a Pappus run, for Node.js: this file, pappus.proto and @grpc/grpc-js are all it needs.
//
//   const client = new Client('127.0.0.1:5000', {observation: ['float32', [3]]}, ['int64', []], {envs: 2});
//   let actions = await client.act([{observation: [0.1, 0.2, 0.3], kind: 'first'}, …]);
//   actions = await client.act([{observation: [0.2, 0.2, 0.3], kind: 'running', reward: 1}, …]);
//
// Each call sends one step of every env and resolves to one action for each. `kind` is first, running, terminated or
// truncated; the action that answers a terminated or truncated step is ignored, and `first` follows it.

'use strict';

const fs = require('node:fs');
const path = require('node:path');
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');

const PROTOCOL = 1;
const ARRAYS = {
  bool: Uint8Array, uint8: Uint8Array, int8: Int8Array, int16: Int16Array, int32: Int32Array, int64: BigInt64Array,
  float32: Float32Array, float64: Float64Array,
};
const SCALARS = {
  first: 'bool', reward: 'float32', discount: 'float32', valid: 'bool', episode_return: 'float32',
  episode_length: 'int32',
};
const PASSING = [grpc.status.UNAVAILABLE, grpc.status.CANCELLED, grpc.status.UNKNOWN, grpc.status.INTERNAL];

// The run has come to its end; the message says why. There is nothing more to do.
class RunOver extends Error {}

function loadService() {
  const places = [path.join(__dirname, 'pappus.proto'), path.join(__dirname, '../../pappus/transports/pappus.proto')];
  const found = places.find((place) => fs.existsSync(place));
  if (!found) throw new Error(`pappus.proto is missing; copy it to ${places[0]}`);
  return grpc.loadPackageDefinition(loader.loadSync(found, {keepCase: true, defaults: true})).pappus.Inference;
}

class Client {
  constructor(address, observation, action, {envs = 1, name = '', token = '', patience = 60, credentials} = {}) {
    // `credentials` are what grpc.credentials.createSsl makes of certificates, for a run that uses TLS.
    Object.assign(this, {address, observation, action, envs, patience});
    this.credentials = credentials || grpc.credentials.createInsecure();
    this.keys = Object.keys(observation).sort();
    const plain = this.keys.length === 1 && this.keys[0] === 'observation';
    const tensors = this.keys.map((key) => {
      const [dtype, shape] = observation[key];
      return {name: plain ? key : `observation/${key}`, shape, dtype};
    });
    for (const [key, dtype] of Object.entries(SCALARS)) tensors.push({name: key, shape: [], dtype});
    const [dtype, shape] = action;
    this.hello = {protocol: PROTOCOL, token, name, env_groups: 1, envs, tensors, action: {name: 'action', shape, dtype}};
    this.returns = new Array(envs).fill(0);
    this.lengths = new Array(envs).fill(0);
    this.service = loadService();
  }

  async act(steps) {
    if (steps.length !== this.envs) throw new Error(`${steps.length} steps came, and there are ${this.envs} envs`);
    const message = {env_group: 0, tensors: this.encode(steps), metrics: metricsOf(steps)};
    let lost = 0;
    for (let pause = 100; ; pause = Math.min(2 * pause, 5000)) {
      try {
        if (!this.stream) await this.connect();
        const {actions} = await this.turn({steps: message});
        return this.decode(actions.action);
      } catch (error) {
        this.close();
        if (error.code === grpc.status.OUT_OF_RANGE) throw new RunOver(error.details);
        lost = lost || Date.now(); // the time that actions take does not count
        if (!PASSING.includes(error.code) || Date.now() - lost > 1000 * this.patience) throw error;
        await new Promise((resolve) => setTimeout(resolve, pause * (0.5 + 0.5 * Math.random())));
      }
    }
  }

  close() {
    if (this.stream) this.stream.cancel();
    if (this.channel) this.channel.close();
    this.stream = this.channel = null;
  }

  async connect() {
    this.channel = new this.service(this.address, this.credentials, {
      'grpc.max_receive_message_length': -1,
      'grpc.keepalive_time_ms': 10000, 'grpc.keepalive_timeout_ms': 10000, // a machine that vanished says nothing
    });
    this.stream = this.channel.Act();
    this.waiting = this.broken = null;
    const {stream} = this;
    const over = Object.assign(new Error('the run ended the stream'), {code: grpc.status.UNAVAILABLE});
    stream.on('data', (message) => this.settle(stream, 'resolve', message));
    stream.on('error', (error) => this.settle(stream, 'reject', error));
    stream.on('status', () => this.settle(stream, 'reject', over)); // after the error, or without one
    await this.turn({hello: this.hello}); // Welcome
  }

  // One message out, one message in.
  turn(message) {
    if (this.broken) return Promise.reject(this.broken);
    return new Promise((resolve, reject) => {
      this.waiting = {resolve, reject};
      this.stream.write(message);
    });
  }

  // The answer to a turn, or the end of the stream, which may come between two turns.
  settle(stream, how, value) {
    if (stream !== this.stream) return; // one that was closed
    const waiting = this.waiting;
    this.waiting = null;
    if (how === 'reject') this.broken ??= value;
    if (waiting) waiting[how](value);
  }

  encode(steps) {
    const columns = this.keys.map((key) => {
      const [dtype] = this.observation[key];
      const parts = steps.map(({observation}) => (ArrayBuffer.isView(observation) || Array.isArray(observation)
        ? observation : observation[key]));
      return Buffer.concat(parts.map((part) => bytes(dtype, part)));
    });
    const rows = steps.map((step, env) => this.scalars(env, step));
    Object.values(SCALARS).forEach((dtype, i) => columns.push(bytes(dtype, rows.map((row) => row[i]))));
    return Buffer.concat(columns);
  }

  scalars(env, {kind, reward = 0}) {
    if (kind === 'first') {
      this.returns[env] = this.lengths[env] = 0;
      return [1, 0, 0, 0, 0, 0];
    }
    this.returns[env] += reward;
    this.lengths[env] += 1;
    const ended = kind === 'terminated' || kind === 'truncated';
    return [0, reward, kind === 'terminated' ? 0 : 1, 1, this.returns[env], ended ? this.lengths[env] : 0];
  }

  decode(buffer) {
    const [dtype, shape] = this.action;
    const aligned = new Uint8Array(buffer).buffer; // a copy: a view would have to start at a multiple of its size
    const values = Array.from(new ARRAYS[dtype](aligned), Number);
    const width = shape.reduce((product, size) => product * size, 1);
    const rows = Array.from({length: this.envs}, (_, i) => values.slice(i * width, (i + 1) * width));
    return shape.length ? rows : rows.map(([value]) => value);
  }
}

// What the envs measured besides: by name, the sum of the values and how many they are.
function metricsOf(steps) {
  const totals = {};
  for (const {metrics = {}} of steps) {
    for (const [name, value] of Object.entries(metrics)) {
      const [sum, count] = totals[name] || [0, 0];
      totals[name] = [sum + Number(value), count + 1];
    }
  }
  return Object.entries(totals).map(([name, total]) => ({name, total}));
}

function bytes(dtype, numbers) {
  const Type = ARRAYS[dtype];
  const array = numbers instanceof Type ? numbers : Type.from(numbers, dtype === 'int64' ? BigInt : Number);
  return Buffer.from(array.buffer, array.byteOffset, array.byteLength);
}

module.exports = {Client, RunOver};
