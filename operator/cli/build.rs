//! Hands the target of this build to the program, for `pawl --version --verbose`.

fn main() {
    let target = std::env::var("TARGET").expect("cargo sets TARGET for build scripts");
    println!("cargo::rustc-env=PAWL_TARGET={target}");
    println!("cargo::rerun-if-changed=build.rs");
}
