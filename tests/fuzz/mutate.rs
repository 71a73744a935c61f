//! Inputs mutated from a corpus by a generator that begins anew for each target, so that a failure comes again.

/// Longer inputs find little more and cost time.
const MAX_LEN: usize = 64 * 1024;

/// Numbers that lengths and counts trip over.
const EDGES: [u64; 10] = [0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, u64::MAX];

pub(super) struct Mutator {
    /// State of splitmix64.
    state: u64,
}

impl Mutator {
    /// A generator that depends on `name` alone.
    pub(super) fn new(name: &str) -> Mutator {
        Mutator {
            state: name
                .bytes()
                .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)),
        }
    }

    /// One of the corpus' inputs with one to four mutations.
    pub(super) fn next(&mut self, corpus: &[Vec<u8>]) -> Vec<u8> {
        let mut input = corpus[self.below(corpus.len())].clone();
        for _ in 0..=self.below(4) {
            self.mutate(&mut input, corpus);
        }
        input.truncate(MAX_LEN);
        input
    }

    fn mutate(&mut self, input: &mut Vec<u8>, corpus: &[Vec<u8>]) {
        let at = self.below(input.len() + 1);
        let end = at + self.below((input.len() - at).min(64) + 1);
        match self.below(9) {
            0 if at < input.len() => input[at] ^= 1 << self.below(8),
            1 if at < input.len() => input[at] = self.random() as u8,
            2 => drop(input.drain(at..end)),
            3 => {
                let piece = input[at..end].to_vec();
                input.splice(at..at, piece);
            }
            4 => {
                let piece: Vec<u8> = (0..=self.below(16)).map(|_| self.random() as u8).collect();
                input.splice(at..at, piece);
            }
            5 => input.truncate(at),
            6 => {
                let width = 1 << self.below(4);
                let edge = EDGES[self.below(EDGES.len())].to_be_bytes();
                let end = (at + width).min(input.len());
                input.splice(at..end, edge[8 - width..].iter().copied());
            }
            7 => {
                let other = &corpus[self.below(corpus.len())];
                input.truncate(at);
                input.extend_from_slice(&other[self.below(other.len() + 1)..]);
            }
            _ => {
                let piece = vec![self.random() as u8; 1 << self.below(11)];
                input.splice(at..at, piece);
            }
        }
    }

    /// A number in `0..bound`.
    fn below(&mut self, bound: usize) -> usize {
        (self.random() % bound as u64) as usize
    }

    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[test]
fn inputs_differ_and_come_again() {
    let corpus = [b"0123456789".to_vec()];
    let inputs = |name| {
        let mut mutator = Mutator::new(name);
        (0..100).map(|_| mutator.next(&corpus)).collect::<Vec<_>>()
    };
    assert_eq!(inputs("a"), inputs("a"));
    assert_ne!(inputs("a"), inputs("b"));
    assert!(inputs("a").iter().filter(|input| **input != corpus[0]).count() > 90);
}
