//! Any text as the settings file: it is read, or refused with a message, and never a panic.

#![no_main]
#![expect(dead_code, reason = "each target uses a part of what the tests and the binary have")]

macro_rules! modules {
    ($($name:ident $path:literal),*) => {
        $(
            #[path = $path]
            mod $name;
        )*
    };
}

// The binary's own modules, as far as reading settings needs them.
modules! {
    cli "../../src/bin/serve/cli.rs",
    failure "../../src/bin/serve/failure.rs",
    file "../../src/bin/serve/file.rs",
    network "../../src/bin/serve/network.rs",
    requests "../../src/bin/serve/requests.rs",
    scheduler "../../src/bin/serve/scheduler.rs",
    tenants "../../src/bin/serve/tenants.rs",
    units "../../src/bin/serve/units.rs"
}

libfuzzer_sys::fuzz_target!(|text: &str| {
    let arguments = ["serve", "--config", "fuzz.toml"].map(Into::into).to_vec();
    if let Err(failure) = file::settings(arguments, |_| Ok(text.to_owned())) {
        assert!(!failure.to_string().is_empty());
        assert_eq!(failure.exit_code(), 2, "{failure}");
    }
});
