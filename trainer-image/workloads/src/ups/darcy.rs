//! Darcy flow: -div(a grad u) = 1 on the unit square with u = 0 on its boundary, for a random two-valued coefficient.

use crate::random::{Normals, Stream};
use gemm::{Parallelism, gemm};
use std::f64::consts::PI;

/// Samples whose normals are drawn as one array.
const CHUNK: usize = 64;
/// The two values of the coefficient.
const HIGH: f64 = 1.0;
const LOW: f64 = 0.1;
/// Square of the inverse correlation length of the random field.
const TAU_SQUARED: f64 = 9.0;
/// Tolerance of a solve: the residual relative to the right-hand side.
const TOLERANCE: f64 = 1e-8;
const MAX_ITERATIONS: usize = 200;

/// Draws coefficients and solves for the pressure on an `s` x `s` grid of cells.
#[derive(Debug)]
pub struct Darcy {
    s: usize,
    count: usize,
    stream: Stream,
    /// cos(pi k (i + 0.5) / s), the basis of the random field; (s, s), row i.
    cosines: Vec<f64>,
    /// Orthonormal sine basis of the constant-coefficient operator; (s, s), row i.
    sines: Vec<f64>,
    /// 1 / (e_k + e_l), the inverse of that operator in the sine basis.
    inverse: Vec<f64>,
}

/// A solution, and its number of iterations.
#[derive(Debug)]
pub struct Solution {
    /// The pressure, (s, s) row-major.
    pub u: Vec<f64>,
    /// Iterations of conjugate gradients.
    pub iterations: usize,
}

impl Darcy {
    /// `count` samples on a grid of `s` x `s` cells, from stream 2 of `seed`.
    pub fn new(seed: u64, count: usize, s: usize) -> Self {
        let grid = |f: &dyn Fn(usize, usize) -> f64| (0..s * s).map(|at| f(at / s, at % s)).collect::<Vec<f64>>();
        let centre = |i: usize| (i as f64 + 0.5) / s as f64;
        let eigenvalue = |k: usize| {
            let sine = libm::sin(PI * (k + 1) as f64 / (2 * s) as f64);
            4.0 * sine * sine * (s * s) as f64
        };
        let last = |k: usize| if k + 1 == s { std::f64::consts::SQRT_2 } else { 1.0 };
        Self {
            s,
            count,
            stream: Stream::new(seed, 2),
            cosines: grid(&|i, k| libm::cos(PI * k as f64 * centre(i))),
            sines: grid(&|i, k| libm::sin(PI * (k + 1) as f64 * centre(i)) * libm::sqrt(2.0 / s as f64) / last(k)),
            inverse: grid(&|k, l| 1.0 / (eigenvalue(k) + eigenvalue(l))),
        }
    }

    /// Coefficient of sample `index`, (s, s) row-major: a Gaussian random field with covariance (-Laplace +
    /// tau^2)^-alpha, alpha = 2, tau = 3, on the Neumann basis, thresholded at 0.
    pub fn coefficient(&self, index: usize) -> Vec<f64> {
        let (s, area) = (self.s, (self.s * self.s) as u64);
        let chunk = index / CHUNK * CHUNK;
        let drawn = CHUNK.min(self.count - chunk) as u64 * area;
        // A full chunk uses an even number of normals, hence exactly as many words.
        let block = Normals::new(self.stream, chunk as u64 * area, drawn);
        let first = (index - chunk) as u64 * area;
        let mut modes: Vec<f64> = (0..area)
            .map(|at| {
                let (k, l) = ((at / s as u64) as f64, (at % s as u64) as f64);
                block.get(first + at) / (PI * PI * (k * k + l * l) + TAU_SQUARED)
            })
            .collect();
        modes[0] = 0.0;
        let mut half = vec![0.0; s * s];
        product(s, &mut half, (&self.cosines, false), (&modes, false));
        let mut field = modes;
        product(s, &mut field, (&half, false), (&self.cosines, true));
        field.into_iter().map(|g| if g >= 0.0 { HIGH } else { LOW }).collect()
    }

    /// Solves for the pressure under coefficient `a`, by conjugate gradients preconditioned with the exact inverse of
    /// the constant-coefficient operator.
    pub fn solve(&self, a: &[f64]) -> Solution {
        let n = self.s * self.s;
        let faces = Faces::new(a, self.s);
        let (mut u, mut residual) = (vec![0.0; n], vec![1.0; n]);
        let (mut z, mut scratch, mut applied) = (vec![0.0; n], vec![0.0; n], vec![0.0; n]);
        self.precondition(&residual, &mut z, &mut scratch);
        let mut direction = z.clone();
        let mut rz = dot(&residual, &z);
        let target = TOLERANCE * TOLERANCE * n as f64;
        let mut iterations = 0;
        while iterations < MAX_ITERATIONS {
            iterations += 1;
            faces.apply(&direction, &mut applied);
            let step = rz / dot(&direction, &applied);
            for i in 0..n {
                u[i] += step * direction[i];
                residual[i] -= step * applied[i];
            }
            if dot(&residual, &residual) < target {
                break;
            }
            self.precondition(&residual, &mut z, &mut scratch);
            let next = dot(&residual, &z);
            let ratio = next / rz;
            direction.iter_mut().zip(&z).for_each(|(p, z)| *p = z + ratio * *p);
            rz = next;
        }
        Solution { u, iterations }
    }

    /// `z` = S ((S^T r S) * inverse) S^T.
    fn precondition(&self, residual: &[f64], z: &mut [f64], scratch: &mut [f64]) {
        product(self.s, scratch, (&self.sines, true), (residual, false));
        product(self.s, z, (scratch, false), (&self.sines, false));
        z.iter_mut().zip(&self.inverse).for_each(|(z, inverse)| *z *= inverse);
        product(self.s, scratch, (&self.sines, false), (z, false));
        product(self.s, z, (scratch, false), (&self.sines, true));
    }
}

/// Cell-centred finite volumes: conductances of the faces, times s^2.
#[derive(Debug)]
struct Faces {
    s: usize,
    /// Between cell i and the next one in its row; 0 at the end of a row.
    across: Vec<f64>,
    /// Between cell i and the one below it; 0 in the last row.
    down: Vec<f64>,
    /// Of the boundary faces of cell i.
    boundary: Vec<f64>,
}

impl Faces {
    fn new(a: &[f64], s: usize) -> Self {
        let scale = (s * s) as f64;
        let mean = |l: f64, r: f64| 2.0 * l * r / (l + r) * scale;
        let cells = 0..s * s;
        Self {
            s,
            across: cells.clone().map(|i| if i % s + 1 < s { mean(a[i], a[i + 1]) } else { 0.0 }).collect(),
            down: cells.clone().map(|i| if i + s < s * s { mean(a[i], a[i + s]) } else { 0.0 }).collect(),
            boundary: cells
                .map(|i| {
                    let (row, column) = (i / s, i % s);
                    let sides = [row == 0, row + 1 == s, column == 0, column + 1 == s];
                    sides.iter().filter(|side| **side).count() as f64 * 2.0 * a[i] * scale
                })
                .collect(),
        }
    }

    fn apply(&self, u: &[f64], out: &mut [f64]) {
        let s = self.s;
        out.iter_mut().zip(u).zip(&self.boundary).for_each(|((out, u), boundary)| *out = boundary * u);
        for i in 0..u.len() - 1 {
            let flux = self.across[i] * (u[i + 1] - u[i]);
            out[i] -= flux;
            out[i + 1] += flux;
        }
        for i in 0..u.len() - s {
            let flux = self.down[i] * (u[i + s] - u[i]);
            out[i] -= flux;
            out[i + s] += flux;
        }
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// `out` = A B for `s` x `s` row-major matrices, each transposed if its flag is set.
fn product(s: usize, out: &mut [f64], a: (&[f64], bool), b: (&[f64], bool)) {
    assert!(out.len() == s * s && a.0.len() == s * s && b.0.len() == s * s, "matrices must be {s} x {s}");
    let row = s as isize;
    // (column stride, row stride) of a row-major matrix or its transpose.
    let strides = |transposed: bool| if transposed { (row, 1) } else { (1, row) };
    let ((a_cs, a_rs), (b_cs, b_rs)) = (strides(a.1), strides(b.1));
    // SAFETY: all three are s x s and their lengths were checked; `out` is a unique borrow.
    unsafe {
        gemm(
            s,
            s,
            s,
            out.as_mut_ptr(),
            1,
            row,
            false,
            a.0.as_ptr(),
            a_cs,
            a_rs,
            b.0.as_ptr(),
            b_cs,
            b_rs,
            0.0,
            1.0,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_constant_coefficient_is_solved_at_once() {
        let darcy = Darcy::new(42, 1, 128);
        let Solution { u, iterations } = darcy.solve(&vec![1.0; 128 * 128]);
        assert_eq!(iterations, 1);
        let top = u.iter().copied().fold(0.0, f64::max);
        assert!((top - 0.073_667_8).abs() < 5e-8, "max u = {top}");
    }

    #[test]
    fn a_random_coefficient_takes_about_thirty_iterations_and_the_pressure_is_positive() {
        let darcy = Darcy::new(42, 70, 128);
        for index in [0, 69] {
            let a = darcy.coefficient(index);
            let Solution { u, iterations } = darcy.solve(&a);
            assert!((20..45).contains(&iterations), "{iterations} iterations");
            assert!(u.iter().all(|&u| u > 0.0));
            let mut applied = vec![0.0; u.len()];
            Faces::new(&a, 128).apply(&u, &mut applied);
            let worst = applied.iter().map(|v| (v - 1.0).abs()).fold(0.0, f64::max);
            assert!(worst < 1e-5, "the equation is off by {worst}");
        }
    }
}
