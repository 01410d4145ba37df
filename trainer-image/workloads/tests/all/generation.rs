//! Fields equal those that the reference program solves from the same seed.

use pawl_workloads::ups::advection::Advection;
use pawl_workloads::ups::config::{AdvectionConfig, Betas};
use pawl_workloads::ups::darcy::Darcy;

fn advection(count: usize) -> Advection {
    let betas = Betas::List(vec![1.0, 0.4]);
    Advection::new(42, count, &AdvectionConfig { cells: 16, frames: 3, trajectories: count, betas })
}

fn close(got: &[f32], want: &[f64], tolerance: f64) {
    for (got, want) in got.iter().zip(want) {
        assert!((f64::from(*got) - want).abs() <= tolerance * want.abs().max(1e-3), "{got} is not {want}");
    }
}

#[test]
fn advection_equals_the_reference() {
    let mut field = vec![0.0; 3 * 16];
    let plain = [
        (0, [-0.39420968294143677, 0.938863217830658, 0.9510506391525269, -0.024577060714364052, 0.1814889907836914]),
        (
            6,
            [
                0.19610977172851562,
                0.05168396607041359,
                -0.14025825262069702,
                -0.26183098554611206,
                -0.23457463085651398,
            ],
        ),
    ];
    let few = advection(7);
    for (index, want) in plain {
        few.trajectory(index, &mut field);
        close(&field[32..37], &want, 1e-6);
    }
    // Among 400 trajectories every kind occurs: rectified, negated, windowed, both speeds.
    let many = advection(400);
    let (mut sum, mut absolute) = (0.0, 0.0);
    for index in 0..400 {
        many.trajectory(index, &mut field);
        sum += field.iter().map(|&u| f64::from(u)).sum::<f64>();
        absolute += field.iter().map(|&u| f64::from(u.abs())).sum::<f64>();
    }
    assert!((sum - 205.614_273).abs() < 2e-3, "sum {sum}");
    assert!((absolute - 8_548.770_5).abs() < 2e-2, "sum of absolute values {absolute}");
}

#[test]
fn advection_shifts_by_beta_times_time() {
    // One cell is 1/16; 0.02 * 50 frames at speed 1 is once around the interval.
    let config = AdvectionConfig { cells: 16, frames: 51, trajectories: 3, betas: Betas::List(vec![1.0]) };
    let mut field = vec![0.0; 51 * 16];
    Advection::new(7, 3, &config).trajectory(2, &mut field);
    for cell in 0..16 {
        assert!((field[cell] - field[50 * 16 + cell]).abs() < 1e-5, "the wave has not come around");
    }
    assert_ne!(field[..16], field[16..32]);
}

#[test]
fn darcy_equals_the_reference() {
    // 70 samples: a full chunk of normals and a short one.
    let darcy = Darcy::new(42, 70, 16);
    let (mut coefficients, mut pressures) = (0.0, 0.0);
    let mut rows = Vec::new();
    for index in 0..70 {
        let a = darcy.coefficient(index);
        let u = darcy.solve(&a).u;
        if index == 0 || index == 69 {
            rows.push((a.iter().sum::<f64>(), u[48..52].iter().map(|&u| u as f32).collect::<Vec<_>>()));
        }
        coefficients += a.iter().sum::<f64>();
        pressures += u.iter().sum::<f64>();
    }
    assert!((rows[0].0 - 172.3).abs() < 1e-3 && (rows[1].0 - 148.9).abs() < 1e-3, "{} {}", rows[0].0, rows[1].0);
    close(&rows[0].1, &[0.007928552106022835, 0.02013733796775341, 0.02985653281211853, 0.03796331211924553], 2e-6);
    close(&rows[1].1, &[0.047105465084314346, 0.10413501411676407, 0.12742160260677338, 0.1206691786646843], 2e-6);
    assert!((coefficients - 9964.0).abs() < 0.05, "{coefficients}");
    assert!((pressures - 2_040.872_79).abs() < 1e-3, "{pressures}");
}
