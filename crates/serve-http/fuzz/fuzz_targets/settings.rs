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
    failure "../../src/bin/serve/failure.rs",
    settings "../../src/bin/serve/settings/mod.rs"
}

libfuzzer_sys::fuzz_target!(|text: &str| {
    let arguments = ["serve", "--config", "fuzz.toml"].map(Into::into).to_vec();
    if let Err(failure) = settings::read(arguments, |_| Ok(text.to_owned())) {
        assert!(!failure.to_string().is_empty());
        assert_eq!(failure.exit_code(), 2, "{failure}");
    }
});
