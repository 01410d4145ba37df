"""Plain SGD with NumPy in fp32: gradients are summed over a batch at once, or in parts, which rounds in another order."""

import sys

import numpy

STEPS = 70


def softmax_loss(logits, labels):
    """Losses of each row, and their gradients."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    shares = numpy.exp(shifted)
    shares /= shares.sum(axis=1, keepdims=True)
    rows = numpy.arange(len(labels))
    losses = -numpy.log(numpy.maximum(shares[rows, labels], numpy.float32(1e-30)))
    shares[rows, labels] -= 1
    return losses, shares


def train(weights, batch, gradients, rate):
    """Prints the loss of each step. `batch` makes inputs and labels, `gradients` the losses and the sums of the gradients."""
    parts = int(sys.argv[2])
    speeds = [numpy.zeros_like(weight) for weight in weights]
    for _ in range(STEPS):
        inputs, labels = batch()
        total, sums = numpy.float32(0), [numpy.zeros_like(weight) for weight in weights]
        for part in numpy.array_split(numpy.arange(len(labels)), parts):
            losses, found = gradients(weights, inputs[part], labels[part])
            total += losses.sum(dtype=numpy.float32)
            for known, new in zip(sums, found):
                known += new
        for weight, speed, summed in zip(weights, speeds, sums):
            speed *= numpy.float32(0.9)
            speed += summed / numpy.float32(len(labels))
            weight -= numpy.float32(rate) * speed
        print(total / numpy.float32(len(labels)))
