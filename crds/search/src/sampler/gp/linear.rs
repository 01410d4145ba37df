//! Cholesky factors of small dense matrices.
//!
//! Libraries for linear algebra choose their instructions by the processor (fused multiply-add or not), and then round
//! differently. The point of a trial has to be the same on every machine, so these few loops are here, in a fixed
//! order.

/// Lower triangular factor of a symmetric positive definite matrix, by rows.
#[derive(Clone, Debug)]
pub(super) struct Factor {
    rows: Vec<Vec<f64>>,
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

impl Factor {
    /// The factor of `matrix`, of which the lower triangle is read. `None` if it is not positive definite.
    pub(super) fn of(matrix: &[Vec<f64>]) -> Option<Self> {
        let mut rows: Vec<Vec<f64>> = Vec::with_capacity(matrix.len());
        for (i, source) in matrix.iter().enumerate() {
            let mut row = Vec::with_capacity(i + 1);
            for (j, above) in rows.iter().enumerate() {
                let rest: f64 = source[j] - dot(&row, &above[..j]);
                row.push(rest / above[j]);
            }
            let pivot = source[i] - dot(&row, &row);
            if pivot.is_nan() || pivot <= 0.0 {
                return None;
            }
            row.push(libm::sqrt(pivot));
            rows.push(row);
        }
        Some(Self { rows })
    }

    /// Solves L x = `right`.
    pub(super) fn forward(&self, right: &[f64]) -> Vec<f64> {
        let mut x = Vec::with_capacity(right.len());
        for (i, row) in self.rows.iter().enumerate() {
            let value = (right[i] - dot(&row[..i], &x)) / row[i];
            x.push(value);
        }
        x
    }

    /// Solves Lᵀ x = `right`.
    pub(super) fn backward(&self, right: &[f64]) -> Vec<f64> {
        let mut x = right.to_vec();
        for i in (0..x.len()).rev() {
            x[i] /= self.rows[i][i];
            let value = x[i];
            for (target, factor) in x[..i].iter_mut().zip(&self.rows[i]) {
                *target -= factor * value;
            }
        }
        x
    }

    /// Solves L Lᵀ x = `right`.
    pub(super) fn solve(&self, right: &[f64]) -> Vec<f64> {
        self.backward(&self.forward(right))
    }

    /// The inverse of L Lᵀ.
    pub(super) fn inverse(&self) -> Vec<Vec<f64>> {
        let count = self.rows.len();
        let unit = |column: usize| (0..count).map(|row| f64::from(u8::from(row == column))).collect::<Vec<_>>();
        (0..count).map(|column| self.solve(&unit(column))).collect()
    }

    /// Logarithm of the determinant of L Lᵀ.
    pub(super) fn log_determinant(&self) -> f64 {
        self.rows.iter().enumerate().map(|(i, row)| 2.0 * libm::log(row[i])).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factor_solves_and_inverts() {
        let matrix = vec![vec![4.0, 2.0, 0.6], vec![2.0, 5.0, 1.0], vec![0.6, 1.0, 3.0]];
        let factor = Factor::of(&matrix).unwrap();
        let x = factor.solve(&[1.0, 2.0, 3.0]);
        for (row, right) in matrix.iter().zip([1.0, 2.0, 3.0]) {
            assert!((dot(row, &x) - right).abs() < 1e-12);
        }
        let inverse = factor.inverse();
        for (i, row) in matrix.iter().enumerate() {
            for (j, column) in inverse.iter().enumerate() {
                assert!((dot(row, column) - f64::from(u8::from(i == j))).abs() < 1e-12);
            }
        }
        let determinant = 4.0 * (15.0 - 1.0) - 2.0 * (6.0 - 0.6) + 0.6 * (2.0 - 3.0);
        assert!((factor.log_determinant() - libm::log(determinant)).abs() < 1e-12);
        assert!(Factor::of(&[vec![1.0, 2.0], vec![2.0, 1.0]]).is_none(), "indefinite");
    }
}
