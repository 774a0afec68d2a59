#!/usr/bin/env python3
"""Actors ask the server for actions while a learner trains their policy and publishes it.

Each actor is a process that plays episodes of a cart-pole, and asks for an action in every frame.
The learner trains on the longest of the newest episodes (the cross-entropy method), one step after
the other, and publishes the policy every two seconds. The actors first play without the learner.
Prints how long their requests took without and with it. Exits with 1 after an error of any process.
"""

import argparse
import math
import multiprocessing
import sys
import time
from collections import deque
from queue import Empty
from typing import NamedTuple

import braid
import numpy as np

MODEL = "policy"
MAX_FRAMES = 500
NEWEST_EPISODES, BEST_EPISODES = 128, 32
BATCH_SIZE = 256
PUBLISH_SECONDS = 2
START_SECONDS = 120
WARM_UP_SECONDS = 1


class CartPole:
    """A pole on a cart, with the physics of Gym's CartPole-v1.

    An episode ends when the pole falls, when the cart leaves the track, or after 500 frames.
    state: position, speed, angle and angular speed, float32 [4].
    """

    def __init__(self, random):
        self.state = random.uniform(-0.05, 0.05, 4).astype(np.float32)
        self.frames = 0

    def step(self, action):
        """Pushes the cart to the left (0) or to the right (1) for 20 ms."""
        _, speed, angle, spin = self.state.tolist()
        sin, cos = math.sin(angle), math.cos(angle)
        push = ((10.0 if action == 1 else -10.0) + 0.05 * spin**2 * sin) / 1.1
        spin_change = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        speed_change = push - 0.05 * spin_change * cos / 1.1
        changes = np.array([speed, speed_change, spin, spin_change], np.float32)
        self.state = self.state + np.float32(0.02) * changes
        self.frames += 1

    def has_ended(self):
        position, _, angle, _ = abs(self.state).tolist()
        return self.frames == MAX_FRAMES or position > 2.4 or angle > math.radians(12)


class Episode(NamedTuple):
    """states: float32 [N, 4]. actions: int64 [N]. version: of the policy when the episode began."""

    states: np.ndarray
    actions: np.ndarray
    version: int


def act(address, seed, rate, started, stop, episodes, requests):
    """Runs an actor until `stop` is set.

    rate: frames per second. started: barrier of all processes. episodes: queue for each Episode.
    requests: queue for an array of the start and the duration of each request in seconds, [N, 2].
    """
    random = np.random.default_rng(seed)
    times = []
    with braid.connect(address, wait_ready=START_SECONDS) as client:
        started.wait(START_SECONDS)
        frame = time.monotonic() + random.uniform(0, 1 / rate)
        while not stop.is_set():
            version = client.model_metadata(MODEL).versions[-1]
            game, states, actions = CartPole(random), [], []
            while not game.has_ended() and not stop.is_set():
                time.sleep(max(0.0, frame - time.monotonic()))
                began = time.monotonic()
                logits = client.infer(MODEL, {"input": game.state[None]})["logits"][0]
                times.append((began, time.monotonic() - began))
                frame = max(frame + 1 / rate, began)  # does not catch up after a delay
                exponentials = np.exp(logits - logits.max())
                action = int(random.uniform() * exponentials.sum() >= exponentials[0])
                states.append(game.state)
                actions.append(action)
                game.step(action)
            if game.has_ended():
                episodes.put(Episode(np.stack(states), np.array(actions), version))
    requests.put(np.array(times).reshape(-1, 2))


class Actors:
    """The processes of the actors. Context manager: ends them."""

    def __init__(self, address, count, rate):
        # gRPC does not work in forked processes.
        context = multiprocessing.get_context("spawn")
        started = context.Barrier(count + 1)
        self._stop, self._episodes, self._requests = (
            context.Event(), context.Queue(), context.Queue(),
        )  # fmt: skip
        shared = (started, self._stop, self._episodes, self._requests)
        self._processes = [
            context.Process(target=act, args=(address, seed, rate, *shared), daemon=True)
            for seed in range(count)
        ]
        for process in self._processes:
            process.start()
        started.wait(START_SECONDS)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self._processes:
            process.kill()
            process.join()

    def episodes(self):
        """Returns the episodes that have ended since the last call."""
        self._check()
        ended = []
        while True:
            try:
                ended.append(self._episodes.get_nowait())
            except Empty:
                return ended

    def stop(self):
        """Stops the actors. Returns the starts and durations of all requests, [N, 2]."""
        self._stop.set()
        times = []
        while len(times) < len(self._processes):
            self.episodes()  # A process sends its requests even if nobody wants its last episodes.
            try:
                times.append(self._requests.get(timeout=0.1))
            except Empty:
                continue
        return np.concatenate(times)

    def _check(self):
        for number, process in enumerate(self._processes):
            if process.exitcode:
                raise RuntimeError(f"actor {number} failed (exit code {process.exitcode})")


def learn(client, actors, seconds):
    """Trains on the longest of the newest episodes, and publishes. Returns (steps, episodes)."""
    trainer = client.create_trainer(
        MODEL, name="learner", loss="cross_entropy", optimizer={"name": "Adam", "lr": 1e-3}
    )
    random = np.random.default_rng(0)
    newest, ended = deque(maxlen=NEWEST_EPISODES), []
    steps = 0
    now = time.monotonic()
    end, publish = now + seconds, now + PUBLISH_SECONDS
    while now < end:
        episodes = actors.episodes()
        ended += episodes
        newest.extend(episodes)
        if episodes:
            best = sorted(newest, key=lambda each: len(each.actions))[-BEST_EPISODES:]
            states = np.concatenate([each.states for each in best])
            actions = np.concatenate([each.actions for each in best])
        if newest:
            batch = random.integers(len(actions), size=BATCH_SIZE)
            trainer.step({"input": states[batch]}, {"target": actions[batch]})
            steps += 1
        now = time.monotonic()
        if now >= publish:
            trainer.publish()
            publish = now + PUBLISH_SECONDS
    trainer.delete()
    return steps, ended


def describe(what, durations):
    """Prints a line, and returns the 99th percentile in seconds."""
    p50, p99 = np.percentile(durations, [50, 99])
    print(
        f"{what:8} {len(durations):8} actions  "
        f"p50 {p50 * 1000:6.2f} ms  p99 {p99 * 1000:6.2f} ms"
    )
    return p99


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", default="127.0.0.1:8001", help="default: 127.0.0.1:8001")
    parser.add_argument("--actors", type=int, default=32, help="processes; default: 32")
    parser.add_argument(
        "--rate", type=float, default=20, help="frames per second of each actor; default: 20"
    )
    parser.add_argument(
        "--seconds", type=float, default=60, help="with the learner; default: 60; before, the "
        "actors play a quarter of that without it",
    )  # fmt: skip
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    with braid.connect(arguments.server, wait_ready=START_SECONDS) as client:
        with Actors(arguments.server, arguments.actors, arguments.rate) as actors:
            began = time.monotonic() + WARM_UP_SECONDS
            while time.monotonic() < began + arguments.seconds / 4:
                actors.episodes()
                time.sleep(0.1)
            learning = time.monotonic()
            steps, episodes = learn(client, actors, arguments.seconds)
            ended = time.monotonic()
            times = actors.stop()
    starts, durations = times.T
    alone = describe("alone", durations[(starts >= began) & (starts < learning)])
    p99 = describe("learner", durations[(starts >= learning) & (starts < ended)])
    print(f"p99 with the learner / alone: {p99 / alone:.2f}")
    frames = [len(each.actions) for each in episodes]
    print(
        f"{steps} steps; episodes of {np.mean(frames[:100]):.0f} frames at first, and of "
        f"{np.mean(frames[-100:]):.0f} with version {episodes[-1].version}"
    )


if __name__ == "__main__":
    main()
