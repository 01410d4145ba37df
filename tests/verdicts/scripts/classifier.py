"""A classifier of noisy patterns with two hidden layers. Arguments: seed, parts of a batch."""

import sys

import numpy

from common import softmax_loss, train

random = numpy.random.default_rng(int(sys.argv[1]))
centers = random.standard_normal((10, 64)).astype(numpy.float32)
sizes = [64, 128, 128, 10]
layers = [(random.standard_normal(pair) / numpy.sqrt(pair[0] / 2)).astype(numpy.float32) for pair in zip(sizes, sizes[1:])]


def batch():
    labels = random.integers(0, 10, 64)
    return (centers[labels] + 2 * random.standard_normal((64, 64))).astype(numpy.float32), labels


def gradients(weights, inputs, labels):
    hidden = [inputs]
    for weight in weights[:-1]:
        hidden.append(numpy.maximum(hidden[-1] @ weight, 0))
    losses, back = softmax_loss(hidden[-1] @ weights[-1], labels)
    found = []
    for weight, into in zip(reversed(weights), reversed(hidden)):
        found.append(into.T @ back)
        back = (back @ weight.T) * (into > 0)
    return losses, found[::-1]


train(layers, batch, gradients, rate=0.05)
