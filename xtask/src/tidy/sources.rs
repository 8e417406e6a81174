//! Rules about one file's text.

use super::{File, Finding};

/// Lines of code that a file may have, its tests not counted.
const CODE_LINES_MAX: usize = 500;

/// Files that may hold `unsafe` code: vector instructions, threads that share one operation, the pages
/// under a buffer, launches on a GPU and what was recorded of them, the search for NVRTC, and nothing else.
const UNSAFE_ALLOWED: [&str; 8] = [
    "crates/serve-model/src/cpu/kernels/pages.rs",
    "crates/serve-model/src/cpu/kernels/team.rs",
    "crates/serve-model/src/cpu/kernels/x86/avx2.rs",
    "crates/serve-model/src/cpu/kernels/x86/avx512.rs",
    "crates/serve-model/src/cpu/kernels/x86/dots.rs",
    "crates/serve-model/src/gpu/cuda.rs",
    "crates/serve-model/src/gpu/graph.rs",
    "crates/serve-model/src/gpu/kernels/mod.rs",
];

// The words are cut in two, so that this file does not break its own rules.
const MARKERS: [&str; 4] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("X", "XX"),
    concat!("dbg", "!("),
];
/// Never, in any file.
const OUTSIDE: [&str; 2] = [concat!("/wo", "rk/"), concat!("..", "/shared")];
/// Not in code that is shipped; a test may make a path up.
const MACHINE: [&str; 3] = [
    concat!("/ro", "ot/"),
    concat!("/ho", "me/"),
    concat!("/t", "mp/"),
];
const HISTORY: [&str; 5] = [
    concat!("this ", "session"),
    concat!("previous ", "session"),
    concat!("earlier ", "session"),
    concat!("last ", "session"),
    concat!("this work", "place"),
];

type Rule = fn(&File) -> Vec<Finding>;

/// Every rule of this file, applied to `file`.
pub(super) fn check(file: &File) -> Vec<Finding> {
    let rules: [Rule; 6] = [
        opening,
        length,
        markers,
        machine_paths,
        history,
        unsafe_code,
    ];
    rules.iter().flat_map(|rule| rule(file)).collect()
}

/// A file says first what it is for.
fn opening(file: &File) -> Vec<Finding> {
    let opening = match (file.is_rust(), file.is_cpp()) {
        (true, _) => "//!",
        (_, true) => "// ",
        _ => return Vec::new(),
    };
    if file.text.starts_with(opening) {
        return Vec::new();
    }
    let remedy = format!("open the file with `{opening}`: what it is for, and what it is not");
    vec![Finding::new(file, 1, remedy)]
}

/// A file that is too long holds more than one concept.
fn length(file: &File) -> Vec<Finding> {
    if !(file.is_rust() || file.is_cpp()) || file.is_test() {
        return Vec::new();
    }
    let lines = code_lines(&file.text);
    if lines <= CODE_LINES_MAX {
        return Vec::new();
    }
    let remedy =
        format!("{lines} lines without tests, at most {CODE_LINES_MAX}; split it by concept");
    vec![Finding::new(file, lines, remedy)]
}

/// Lines before the test module, which is the last thing in a file.
fn code_lines(text: &str) -> usize {
    let lines = text.lines().collect::<Vec<_>>();
    let is_test_module = |pair: &[&str]| pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod ");
    let tests = lines
        .windows(2)
        .position(|pair| is_test_module(pair) && pair[1].ends_with('{'));
    tests.unwrap_or(lines.len())
}

/// Unfinished work belongs in an issue, debugging output nowhere.
fn markers(file: &File) -> Vec<Finding> {
    let found = file.lines().flat_map(|(number, line)| {
        let found = MARKERS.iter().filter(|marker| has_word(line, marker));
        found.map(move |marker| {
            Finding::new(
                file,
                number,
                format!("finish it or leave it out: `{marker}`"),
            )
        })
    });
    found.collect()
}

/// Nothing depends on where it was written.
fn machine_paths(file: &File) -> Vec<Finding> {
    let is_product = (file.is_rust() || file.is_cpp()) && !file.is_test();
    let product_lines = if is_product {
        code_lines(&file.text)
    } else {
        0
    };
    let found = file.lines().flat_map(|(number, line)| {
        let machine = if number <= product_lines {
            &MACHINE[..]
        } else {
            &[]
        };
        let found = OUTSIDE
            .iter()
            .chain(machine)
            .filter(|path| has_path(line, path));
        found.map(move |path| {
            let remedy = format!("`{path}` is a path of one machine; take it as an argument");
            Finding::new(file, number, remedy)
        })
    });
    found.collect()
}

/// Sources say what is true now, not how they came to be.
fn history(file: &File) -> Vec<Finding> {
    let found = file.lines().filter(|(_, line)| {
        let line = line.to_lowercase();
        HISTORY.iter().any(|words| line.contains(words)) || names_an_issue(&line)
    });
    let remedy = "say why the code is as it is, without the story of how it came to be";
    found
        .map(|(number, _)| Finding::new(file, number, remedy))
        .collect()
}

/// The compiler forbids `unsafe`; this also catches a file that switches the lint off.
fn unsafe_code(file: &File) -> Vec<Finding> {
    if !file.is_rust() || UNSAFE_ALLOWED.contains(&file.path.as_str()) {
        return Vec::new();
    }
    let word = concat!("un", "safe");
    let found = file.lines().filter(|(_, line)| {
        let code = line.split("//").next().unwrap_or("");
        let openings = ["{", "fn ", "impl ", "trait ", "extern "];
        openings
            .iter()
            .any(|opening| has_word(code, &format!("{word} {opening}")))
    });
    let remedy = format!("no `{word}` outside {UNSAFE_ALLOWED:?}; use a safe interface");
    found
        .map(|(number, _)| Finding::new(file, number, remedy.clone()))
        .collect()
}

/// Whether `word` stands in `line` and no identifier goes on to its left or, if the word ends like an
/// identifier, to its right.
fn has_word(line: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        let open_right = word.ends_with(is_part) && after.is_some_and(is_part);
        !before.is_some_and(is_part) && !open_right
    })
}

/// Whether `line` names an absolute path that begins with `path`: `a/b/` is not below `/b/`, and
/// neither is the web address `https://b/`.
fn has_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "._-/}".contains(c))
    })
}

/// A tracker's number: the word, perhaps a `#`, digits.
fn names_an_issue(lowercase: &str) -> bool {
    lowercase.match_indices("issue").any(|(at, word)| {
        let after = lowercase[at + word.len()..].trim_start_matches([' ', '#']);
        let glued = lowercase[at + word.len()..].starts_with(|c: char| c.is_ascii_digit());
        !glued && after.starts_with(|c: char| c.is_ascii_digit())
    })
}

#[cfg(test)]
mod tests {
    use super::super::file;
    use super::*;

    const NONE: [usize; 0] = [];

    fn lines(rule: Rule, path: &str, text: &str) -> Vec<usize> {
        rule(&file(path, text))
            .iter()
            .map(|finding| finding.line)
            .collect()
    }

    #[test]
    fn a_rust_file_opens_with_what_it_is_for() {
        assert_eq!(lines(opening, "a.rs", "use std::fmt;\n"), [1]);
        assert_eq!(lines(opening, "a.rs", "//! Ids.\n"), NONE);
        assert_eq!(lines(opening, "a.md", "# A\n"), NONE);
        assert_eq!(lines(opening, "a.cc", "#include <map>\n"), [1]);
        assert_eq!(lines(opening, "a.h", "// A map.\n"), NONE);
    }

    #[test]
    fn tests_do_not_count_towards_the_length() {
        let code = "//! A.\n".to_owned() + &"x\n".repeat(CODE_LINES_MAX - 1);
        let tests = "#[cfg(test)]\nmod tests {\n".to_owned() + &"x\n".repeat(900) + "}\n";
        assert_eq!(lines(length, "a.rs", &(code.clone() + &tests)), NONE);
        assert_eq!(
            lines(length, "a.rs", &(code.clone() + "x\n" + &tests)),
            [CODE_LINES_MAX + 1]
        );
        assert_eq!(lines(length, "crates/a/tests/b.rs", &code.repeat(2)), NONE);
        assert_eq!(
            lines(length, "a.cc", &"x\n".repeat(CODE_LINES_MAX + 1)).len(),
            1
        );
        let helper = "#[cfg(test)]\nmod fixture;\n".to_owned() + &code;
        assert_eq!(lines(length, "a.rs", &helper).len(), 1);
    }

    #[test]
    fn unfinished_work_is_found_and_words_that_contain_it_are_not() {
        for marker in MARKERS {
            assert_eq!(
                lines(markers, "a.rs", &format!("\n// {marker}")),
                [2],
                "{marker}"
            );
        }
        assert_eq!(
            lines(markers, "a.rs", concat!("MASTO", "DONT AUTO", "DO_IT")),
            NONE
        );
    }

    #[test]
    fn a_path_of_one_machine_is_found_and_an_address_or_a_relative_path_is_not() {
        let outside = OUTSIDE[0];
        assert_eq!(
            lines(machine_paths, "a.md", &format!("cd {outside}me")),
            [1]
        );
        assert_eq!(
            lines(machine_paths, "a.md", &format!("https:/{outside}page")),
            NONE
        );
        assert_eq!(
            lines(machine_paths, "a.md", &format!("assets{outside}page")),
            NONE
        );
        for machine in MACHINE {
            let line = format!("let p = \"{machine}x\";\n");
            assert_eq!(lines(machine_paths, "crates/a/src/lib.rs", &line), [1]);
            assert_eq!(lines(machine_paths, "crates/a/tests/it.rs", &line), NONE);
            let in_tests = format!("#[cfg(test)]\nmod tests {{\n{line}}}\n");
            assert_eq!(lines(machine_paths, "crates/a/src/lib.rs", &in_tests), NONE);
        }
    }

    #[test]
    fn a_source_does_not_tell_its_story() {
        assert_eq!(lines(history, "a.rs", concat!("// see iss", "ue #4")), [1]);
        assert_eq!(
            lines(history, "a.rs", concat!("// Iss", "ue 12 asked for it")),
            [1]
        );
        assert_eq!(
            lines(history, "a.rs", concat!("// as in this ", "session")),
            [1]
        );
        assert_eq!(
            lines(history, "a.rs", "// a warning is issued 3 times, an issue"),
            NONE
        );
    }

    #[test]
    fn unsafe_code_is_found_and_talk_about_it_is_not() {
        let word = concat!("un", "safe");
        assert_eq!(
            lines(unsafe_code, "a.rs", &format!("    {word} {{ x() }}")),
            [1]
        );
        assert_eq!(
            lines(unsafe_code, "a.rs", &format!("pub {word} fn x()")),
            [1]
        );
        assert_eq!(
            lines(unsafe_code, "a.rs", &format!("// no {word} {{ here }}")),
            NONE
        );
        assert_eq!(
            lines(unsafe_code, "a.toml", &format!("{word}_code = \"forbid\"")),
            NONE
        );
    }
}
