//! The simulation finds what is broken: each of these variants, within so many seeds.

use lockstep_mutants::Mutant;

/// Seeds within which every variant has to be found.
const WITHIN: u64 = 10_000;

/// The first seed that finds this variant.
fn caught(mutant: Mutant) -> Option<(u64, String)> {
    lockstep_mutants::select(Some(mutant));
    let found = (0..WITHIN).find_map(|seed| Some((seed, lockstep_simulation::run(seed).violation?)));
    lockstep_mutants::select(None);
    found
}

#[test]
fn every_broken_variant_is_found() {
    let mut missed = Vec::new();
    std::thread::scope(|scope| {
        let (even, odd): (Vec<_>, Vec<_>) = Mutant::ALL
            .iter()
            .enumerate()
            .partition(|(index, _)| index % 2 == 0);
        let search = |mutants: Vec<(usize, &'static Mutant)>| {
            scope.spawn(move || {
                let mut missed = Vec::new();
                for (_, mutant) in mutants {
                    match caught(*mutant) {
                        Some((seed, violation)) => println!("{mutant:?}: seed {seed}: {violation}"),
                        None => missed.push(*mutant),
                    }
                }
                missed
            })
        };
        for searching in [search(even), search(odd)] {
            missed.extend(searching.join().unwrap());
        }
    });
    assert_eq!(missed, []);
}
