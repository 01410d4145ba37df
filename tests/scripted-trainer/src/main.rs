//! A rank that does what its plan's script says. See the crate's documentation.

fn main() -> std::process::ExitCode {
    pawl_scripted_trainer::main()
}
