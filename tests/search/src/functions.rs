//! The test functions: twelve spaces with a loss to minimize and its smallest value.

use pawl_search::space::{Domain, Parameter, Point, Scale, Space, Value};
use std::f64::consts::{E, PI, TAU};

/// A test function.
#[derive(Clone, Copy)]
pub struct Function {
    /// Its name.
    pub name: &'static str,
    /// Its space.
    pub space: fn() -> Space,
    /// Its loss at a point of the space.
    pub loss: fn(&Point) -> f64,
    /// Its smallest loss.
    pub minimum: f64,
    /// Whether it is one of those with few, continuous parameters.
    pub smooth: bool,
}

/// All functions.
pub const ALL: [Function; 12] = [
    Function {
        name: "branin",
        space: || ranges(&[(-5.0, 10.0), (0.0, 15.0)]),
        loss: branin,
        minimum: 0.397_887_357_729_739,
        smooth: true,
    },
    Function {
        name: "camel",
        space: || ranges(&[(-3.0, 3.0), (-2.0, 2.0)]),
        loss: camel,
        minimum: -1.031_628_453_489_877,
        smooth: true,
    },
    Function {
        name: "hartmann3",
        space: || cube(3, 0.0, 1.0),
        loss: hartmann3,
        minimum: -3.862_779_787_332_66,
        smooth: true,
    },
    Function {
        name: "hartmann6",
        space: || cube(6, 0.0, 1.0),
        loss: hartmann6,
        minimum: -3.322_368_011_415_51,
        smooth: true,
    },
    Function { name: "rosenbrock5", space: || cube(5, -2.0, 2.0), loss: rosenbrock, minimum: 0.0, smooth: true },
    Function { name: "ackley5", space: || cube(5, -15.0, 30.0), loss: ackley, minimum: 0.0, smooth: false },
    Function { name: "rastrigin4", space: || cube(4, -5.12, 4.12), loss: rastrigin, minimum: 0.0, smooth: false },
    Function { name: "levy4", space: || cube(4, -10.0, 10.0), loss: levy, minimum: 0.0, smooth: false },
    Function { name: "zakharov-whole", space: whole, loss: zakharov, minimum: 0.0, smooth: false },
    Function { name: "training-mixed", space: mixed, loss: training, minimum: 0.05, smooth: false },
    Function { name: "optimizer-conditional", space: conditional, loss: optimizer, minimum: 0.1, smooth: false },
    Function { name: "categorical-ackley", space: categorical, loss: categories, minimum: 0.0, smooth: false },
];

/// The function called `name`.
pub fn named(name: &str) -> Option<Function> {
    ALL.into_iter().find(|function| function.name == name)
}

fn ranges(ranges: &[(f64, f64)]) -> Space {
    let parameter = |(index, &(low, high)): (usize, &(f64, f64))| {
        Parameter::new(&format!("x{index}"), Domain::Float { low, high, scale: Scale::Linear })
    };
    Space { parameters: ranges.iter().enumerate().map(parameter).collect(), ..Space::default() }
}

fn cube(dimensions: usize, low: f64, high: f64) -> Space {
    ranges(&vec![(low, high); dimensions])
}

fn number(point: &Point, name: &str) -> f64 {
    point.get(name).and_then(Value::number).unwrap_or(f64::NAN)
}

fn text<'a>(point: &'a Point, name: &str) -> &'a str {
    match point.get(name) {
        Some(Value::Text(text)) => text,
        _ => "",
    }
}

/// The coordinates x0, x1, ...
fn vector(point: &Point) -> Vec<f64> {
    (0..point.len()).map(|index| number(point, &format!("x{index}"))).collect()
}

fn branin(point: &Point) -> f64 {
    let x = vector(point);
    let curve = x[1] - 5.1 / (4.0 * PI * PI) * x[0] * x[0] + 5.0 / PI * x[0] - 6.0;
    curve * curve + 10.0 * (1.0 - 1.0 / (8.0 * PI)) * libm::cos(x[0]) + 10.0
}

fn camel(point: &Point) -> f64 {
    let x = vector(point);
    let (a, b) = (x[0] * x[0], x[1] * x[1]);
    (4.0 - 2.1 * a + a * a / 3.0) * a + x[0] * x[1] + (4.0 * b - 4.0) * b
}

const HARTMANN: [f64; 4] = [1.0, 1.2, 3.0, 3.2];

fn hartmann<const N: usize>(x: &[f64], scales: &[[f64; N]; 4], centers: &[[f64; N]; 4]) -> f64 {
    let peak = |i: usize| -> f64 {
        let distance: f64 = (0..N).map(|j| scales[i][j] * (x[j] - centers[i][j]) * (x[j] - centers[i][j])).sum();
        HARTMANN[i] * libm::exp(-distance)
    };
    -(0..4).map(peak).sum::<f64>()
}

fn hartmann3(point: &Point) -> f64 {
    const A: [[f64; 3]; 4] = [[3.0, 10.0, 30.0], [0.1, 10.0, 35.0], [3.0, 10.0, 30.0], [0.1, 10.0, 35.0]];
    const P: [[f64; 3]; 4] =
        [[0.3689, 0.1170, 0.2673], [0.4699, 0.4387, 0.7470], [0.1091, 0.8732, 0.5547], [0.0381, 0.5743, 0.8828]];
    hartmann(&vector(point), &A, &P)
}

fn hartmann6(point: &Point) -> f64 {
    const A: [[f64; 6]; 4] = [
        [10.0, 3.0, 17.0, 3.5, 1.7, 8.0],
        [0.05, 10.0, 17.0, 0.1, 8.0, 14.0],
        [3.0, 3.5, 1.7, 10.0, 17.0, 8.0],
        [17.0, 8.0, 0.05, 10.0, 0.1, 14.0],
    ];
    const P: [[f64; 6]; 4] = [
        [0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886],
        [0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991],
        [0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650],
        [0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381],
    ];
    hartmann(&vector(point), &A, &P)
}

fn rosenbrock(point: &Point) -> f64 {
    let x = vector(point);
    x.windows(2).map(|w| 100.0 * (w[1] - w[0] * w[0]) * (w[1] - w[0] * w[0]) + (1.0 - w[0]) * (1.0 - w[0])).sum()
}

fn ackley_of(x: &[f64]) -> f64 {
    let count = x.len() as f64;
    let radius = libm::sqrt(x.iter().map(|x| x * x).sum::<f64>() / count);
    let waves = x.iter().map(|x| libm::cos(TAU * x)).sum::<f64>() / count;
    20.0 + E - 20.0 * libm::exp(-0.2 * radius) - libm::exp(waves)
}

fn ackley(point: &Point) -> f64 {
    ackley_of(&vector(point))
}

fn rastrigin(point: &Point) -> f64 {
    vector(point).iter().map(|x| x * x - 10.0 * libm::cos(TAU * x) + 10.0).sum()
}

fn levy(point: &Point) -> f64 {
    let w: Vec<f64> = vector(point).iter().map(|x| 1.0 + (x - 1.0) / 4.0).collect();
    let square = |x: f64| x * x;
    let last = w[w.len() - 1];
    let middle: f64 =
        w[..w.len() - 1].iter().map(|w| square(w - 1.0) * (1.0 + 10.0 * square(libm::sin(PI * w + 1.0)))).sum();
    square(libm::sin(PI * w[0])) + middle + square(last - 1.0) * (1.0 + square(libm::sin(TAU * last)))
}

fn whole() -> Space {
    let parameter =
        |index| Parameter::new(&format!("x{index}"), Domain::Int { low: -50, high: 100, scale: Scale::Linear });
    Space { parameters: (0..4).map(parameter).collect(), ..Space::default() }
}

/// Zakharov's function of x / 10, its minimum moved to 7.
fn zakharov(point: &Point) -> f64 {
    let x: Vec<f64> = vector(point).iter().map(|x| (x - 7.0) / 10.0).collect();
    let squares: f64 = x.iter().map(|x| x * x).sum();
    let line: f64 = x.iter().enumerate().map(|(i, x)| 0.5 * (i + 1) as f64 * x).sum();
    squares + line * line + line * line * line * line
}

fn choices(values: &[&str]) -> Domain {
    Domain::Categorical { choices: values.iter().map(|value| (*value).to_owned()).collect() }
}

fn log(low: f64, high: f64) -> Domain {
    Domain::Float { low, high, scale: Scale::Log }
}

fn mixed() -> Space {
    Space {
        parameters: vec![
            Parameter::new("learningRate", log(1e-6, 1e-1)),
            Parameter::new("weightDecay", log(1e-6, 1.0)),
            Parameter::new("batch", Domain::Int { low: 1, high: 512, scale: Scale::Log }),
            Parameter::new("depth", Domain::Int { low: 2, high: 24, scale: Scale::Step(2.0) }),
            Parameter::new("dropout", Domain::Float { low: 0.0, high: 0.5, scale: Scale::Step(0.05) }),
            Parameter::new("activation", choices(&["relu", "gelu", "silu", "tanh"])),
            Parameter::new("norm", choices(&["layer", "rms", "batch"])),
        ],
        ..Space::default()
    }
}

/// A validation loss as a training shows it: the best learning rate grows with the square root of the batch.
fn training(point: &Point) -> f64 {
    let square = |x: f64| x * x;
    let rate = libm::log10(number(point, "learningRate")) - (-4.0 + 0.5 * libm::log10(number(point, "batch")));
    let decay = libm::log10(number(point, "weightDecay")) + 2.0;
    let batch = libm::log2(number(point, "batch")) - 6.0;
    let depth = (number(point, "depth") - 12.0) / 10.0;
    let activation = match text(point, "activation") {
        "relu" => 0.04,
        "gelu" => 0.0,
        "silu" => 0.01,
        _ => 0.3,
    };
    let norm = match text(point, "norm") {
        "layer" => 0.02,
        "rms" => 0.0,
        _ => 0.2,
    };
    let dropout = square(number(point, "dropout") - 0.1) * (1.0 + depth * depth);
    0.05 + 0.4 * square(rate) / (1.0 + 0.2 * square(rate))
        + 0.02 * square(decay)
        + 0.01 * square(batch)
        + 0.3 * square(depth)
        + dropout
        + activation
        + norm
}

fn conditional() -> Space {
    let is = |value: &str| [Value::Text(value.to_owned())];
    Space {
        parameters: vec![
            Parameter::new("optimizer", choices(&["adam", "sgd", "lbfgs"])),
            Parameter::new("adamRate", log(1e-6, 1.0)).when("optimizer", is("adam")),
            Parameter::new("beta", Domain::Float { low: 0.5, high: 0.999, scale: Scale::Linear })
                .when("optimizer", is("adam")),
            Parameter::new("sgdRate", log(1e-6, 10.0)).when("optimizer", is("sgd")),
            Parameter::new("momentum", Domain::Float { low: 0.0, high: 0.99, scale: Scale::Linear })
                .when("optimizer", is("sgd")),
            Parameter::new("nesterov", choices(&["yes", "no"])).when("optimizer", is("sgd")),
            Parameter::new("memory", Domain::Int { low: 1, high: 50, scale: Scale::Linear })
                .when("optimizer", is("lbfgs")),
            Parameter::new("clip", Domain::Float { low: 0.0, high: 10.0, scale: Scale::Linear }),
        ],
        ..Space::default()
    }
}

/// The best of SGD is best of all, and its basin the narrowest.
fn optimizer(point: &Point) -> f64 {
    let square = |x: f64| x * x;
    let clip = 0.005 * square(number(point, "clip") - 1.0);
    clip + match text(point, "optimizer") {
        "adam" => {
            0.2 + 0.05 * square(libm::log10(number(point, "adamRate")) + 3.0) + square(number(point, "beta") - 0.9)
        }
        "sgd" => {
            let effective = libm::log10(number(point, "sgdRate") / (1.0 - number(point, "momentum")));
            let nesterov = if text(point, "nesterov") == "yes" { 0.0 } else { 0.05 };
            0.1 + 0.15 * square(effective) + 0.3 * square(number(point, "momentum") - 0.9) + nesterov
        }
        _ => 0.5 + 0.0002 * square(number(point, "memory") - 20.0),
    }
}

fn categorical() -> Space {
    let levels = ["-3", "-1", "0", "2", "4", "5"];
    let mut space = cube(2, -5.0, 7.0);
    space.parameters.extend((2..6).map(|index| Parameter::new(&format!("x{index}"), choices(&levels))));
    space
}

/// Ackley's function of which four coordinates are lists: neighbours in the list are not neighbours in value.
fn categories(point: &Point) -> f64 {
    let levels: Vec<f64> = (2..6).map(|i| text(point, &format!("x{i}")).parse().unwrap_or(f64::NAN)).collect();
    let x: Vec<f64> = [number(point, "x0"), number(point, "x1")].into_iter().chain(levels).collect();
    ackley_of(&x)
}

/// Epochs of a complete training of [`curve`].
pub const EPOCHS: u32 = 81;

/// Space of [`curve`]: that of the function `training-mixed`.
pub fn curve_space() -> Space {
    mixed()
}

/// Validation loss of a training after `epoch` epochs, 1 to [`EPOCHS`]: a power law down to the loss of
/// `training-mixed`. Small learning rates start slowly, so that the order of two trainings may change, and every value
/// has noise, which is a function of the point and the epoch.
pub fn curve(point: &Point, epoch: u32) -> f64 {
    let last = training(point);
    let rate = libm::log10(number(point, "learningRate"));
    let slowness = (-rate - 1.0) / 5.0;
    let decay = libm::pow(f64::from(epoch), -(1.1 - 0.6 * slowness));
    let bits = point
        .values()
        .filter_map(Value::number)
        .map(f64::to_bits)
        .fold(u64::from(epoch), |hash, bits| (hash ^ bits).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29));
    let noise = (bits >> 11) as f64 / (1u64 << 53) as f64 - 0.5;
    last + 2.0 * decay * (1.0 + 0.3 * slowness) + 0.01 * noise
}
