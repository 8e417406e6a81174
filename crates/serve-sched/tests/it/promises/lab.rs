use super::device::{Case, Promise, Shape, cases};

#[test]
fn lab() {
    let get = |k: &str, d: &str| std::env::var(k).unwrap_or(d.to_owned());
    let only = get("CASE", "");
    let shapes = get("SHAPE", "alike,two,trace");
    let seeds: u64 = get("SEEDS", "1").parse().unwrap();
    let loads: Vec<f64> = get("LOADS", "0.9,1.2,2,4")
        .split(',')
        .map(|l| l.parse().unwrap())
        .collect();
    for promise in [Promise::End, Promise::Deadline, Promise::FirstToken] {
        if !get("PROMISE", "").is_empty() && format!("{promise:?}") != get("PROMISE", "") {
            continue;
        }
        for case in cases().into_iter().filter(|c| c.name.starts_with(&only)) {
            for shape in [Shape::Alike, Shape::TwoKinds, Shape::Trace] {
                let n = match shape {
                    Shape::Alike => "alike",
                    Shape::TwoKinds => "two",
                    Shape::Trace => "trace",
                };
                if !shapes.contains(n) {
                    continue;
                }
                print!("{promise:?} {:10} {n:6}", case.name);
                for &load in &loads {
                    let k: Vec<_> = (0..seeds)
                        .map(|seed| case.keep(promise, shape, load, seed))
                        .collect();
                    let worst = |f: fn(&super::device::Kept) -> f64| {
                        k.iter().map(f).fold(f64::MIN, f64::max)
                    };
                    let least = |f: fn(&super::device::Kept) -> f64| {
                        k.iter().map(f).fold(f64::MAX, f64::min)
                    };
                    print!(
                        " |{load}: p99 {:5.2} late {:4.1}% good {:4.0}% ref {:4.1}% exp {:3.1}%",
                        worst(|k| k.p99),
                        worst(|k| k.late) * 100.0,
                        least(|k| k.goodput) * 100.0,
                        worst(|k| k.refused) * 100.0,
                        worst(|k| k.expired) * 100.0
                    );
                }
                println!();
            }
        }
    }
    let _: Option<Case> = None;
}
