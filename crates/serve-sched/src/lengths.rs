//! How many tokens a request will generate, learnt from those that have ended and from those that were
//! ended: a request that ran into its limit, was cancelled or expired says that it would have been at
//! least so long. Leaving it out, or counting it as ended, makes long answers look short.
//!
//! The estimate is that of Kaplan and Meier (*Nonparametric Estimation from Incomplete Observations*,
//! JASA 1958), over token counts in cells of which four make a doubling: of those seen to reach a cell,
//! how many ended in it. Requests are alike whose output limits, and whose prompts, lie in the same power of
//! two; where limits do not tell, a single one with a like prompt that ended, or lasted longer than expected, says
//! more than all with like limits. A limit that a client leaves at its default says little, and one that it states
//! says much, and both are learnt so: where everybody runs to the limit, nobody is seen to end before it.

use std::cmp::Ordering;

use serve_core::Request;

/// Predicts how long answers will be. One's own may know more than a limit: what the prompt asks for,
/// who asks, what a client says in a header.
pub trait Lengths: Send {
    /// Tokens that a request is expected to generate, from 1 up to its output limit, and how sure that is.
    ///
    /// `unseen` says what to take for lengths of which nothing is known: see [`Unseen`].
    fn expected(&self, request: &Request, unseen: Unseen) -> Expected;

    /// The chance, from 0 to 1, that a request which has generated `done` tokens ends within `more`
    /// others. Where nothing is known it is 1: nobody is given up on a guess.
    fn chance(&self, request: &Request, done: u32, more: u32) -> f64;

    /// A request is over after `output_tokens`. `by_itself`, that is how long it was; otherwise it would
    /// have been at least as long.
    fn ended(&mut self, request: &Request, output_tokens: u32, by_itself: bool);

    /// What was seen so far was no sample of what is to come.
    fn forget(&mut self) {}
}

/// How long an answer is expected to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Tokens, in the mean.
    pub tokens: u32,
    /// Their standard deviation; 0 for one that is certain.
    pub spread: u32,
}

impl Expected {
    /// A length that is known.
    pub const fn certain(tokens: u32) -> Self {
        Self { tokens, spread: 0 }
    }
}

/// What is expected of lengths that nobody has been seen to reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unseen {
    /// That nobody reaches them: to judge a request by itself, as refusing on a guess would keep it from
    /// ever being known better.
    Short,
    /// That everybody goes on to the limit: to judge what is ahead of a request.
    Long,
}

/// Lengths as seen, by the powers of two of the output limit and of the prompt's length: a long prompt often asks
/// for another answer than a short one.
#[derive(Clone, Debug, Default)]
pub struct SeenLengths {
    /// By the power of two of the limit.
    limits: Vec<Like>,
}

/// Requests with like limits.
#[derive(Clone, Debug)]
struct Like {
    all: Seen,
    /// Whether nobody was seen to end before its limit.
    tells: bool,
    /// By the power of two of the prompt's length.
    prompts: Vec<Seen>,
}

impl Default for Like {
    fn default() -> Self {
        Self {
            all: Seen::default(),
            tells: true,
            prompts: Vec::new(),
        }
    }
}

/// What was seen of requests that are alike.
#[derive(Clone, Debug, Default)]
struct Seen {
    cells: Vec<Cell>,
    requests: u32,
    /// Those of them that ended by themselves, or were cut off only beyond what was expected of those with like limits: one
    /// that is cut off at once says nothing of its kind.
    telling: u32,
}

/// Requests that came as far as a range of token counts.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    reached: f64,
    ended: f64,
    /// The chance of getting past it for one that has reached it.
    past: f64,
}

/// Each one seen makes what was seen before count so much less.
const FORGET: f64 = 1.0 / 256.0;

/// Less than this is nothing.
const SEEN_MIN: f64 = 0.5;

/// So many requests with like prompts say more than all with like limits do, or so many of these something of a prompt
/// unlike theirs.
const SEEN_ENOUGH: u32 = 16;

impl SeenLengths {
    /// Nothing seen yet.
    pub const fn new() -> Self {
        Self { limits: Vec::new() }
    }

    fn seen(&self, request: &Request) -> Option<&Seen> {
        let (limit, prompt) = kind(request);
        let like = self.limits.get(limit)?;
        let (enough, least_others): (fn(&&Seen) -> bool, u32) = match like.tells {
            true => (|alike| alike.requests >= SEEN_ENOUGH, 0),
            // Those that are short end first: until many that are long have ended, all would be taken for short.
            false => (|alike| alike.telling > 0, SEEN_ENOUGH),
        };
        let alike = like.prompts.get(prompt).filter(enough);
        let others = Some(&like.all).filter(|all| all.requests >= least_others);
        alike.or(others)
    }
}

/// The powers of two of the limit and of the prompt's length.
fn kind(request: &Request) -> (usize, usize) {
    let limit = request.output_tokens_max().ilog2();
    let prompt = request.prompt_tokens().max(1).ilog2();
    (limit as usize, prompt as usize)
}

impl Lengths for SeenLengths {
    fn expected(&self, request: &Request, unseen: Unseen) -> Expected {
        let limit = request.output_tokens_max();
        let nothing = Seen::default();
        let (mean, square) = self
            .seen(request)
            .unwrap_or(&nothing)
            .moments(limit, unseen);
        let tokens = (mean.round() as u32).clamp(1, limit);
        let spread = (square - mean * mean).max(0.0).sqrt();
        Expected {
            tokens,
            spread: spread.round() as u32,
        }
    }

    fn chance(&self, request: &Request, done: u32, more: u32) -> f64 {
        let left = request.output_tokens_max().saturating_sub(done);
        match self.seen(request) {
            Some(seen) if more < left => 1.0 - seen.lasting(done, more),
            _ => 1.0,
        }
    }

    fn ended(&mut self, request: &Request, output_tokens: u32, by_itself: bool) {
        let ended = by_itself && output_tokens < request.output_tokens_max();
        let (limit, prompt) = kind(request);
        if self.limits.len() <= limit {
            self.limits.resize_with(limit + 1, Like::default);
        }
        let like = &mut self.limits[limit];
        if like.prompts.len() <= prompt {
            like.prompts.resize_with(prompt + 1, Seen::default);
        }
        like.tells &= !ended;
        let telling = ended || {
            let (expected, _) = like.all.moments(request.output_tokens_max(), Unseen::Short);
            f64::from(output_tokens) > expected
        };
        let alike = &mut like.prompts[prompt];
        alike.telling = alike.telling.saturating_add(telling.into());
        like.all.add(output_tokens, ended);
        like.prompts[prompt].add(output_tokens, ended);
    }

    fn forget(&mut self) {
        self.limits.clear();
    }
}

impl Seen {
    /// One that ended with `tokens`, or was last seen there.
    fn add(&mut self, tokens: u32, ended: bool) {
        self.requests = self.requests.saturating_add(1);
        let last = cell_of(tokens);
        if self.cells.len() <= last {
            self.cells.resize(last + 1, Cell::default());
        }
        for (index, cell) in self.cells.iter_mut().enumerate().take(last + 1) {
            // One that was last seen in a cell says something of the part that it has passed.
            let part = match index.cmp(&last) {
                Ordering::Less => 1.0,
                Ordering::Equal if ended => 1.0,
                Ordering::Equal => {
                    let (start, end) = (start_of(index), start_of(index + 1));
                    (u64::from(tokens) - start) as f64 / (end - start) as f64
                }
                Ordering::Greater => 0.0,
            };
            // What is known of a cell is forgotten as others come so far, and not before.
            let keep = 1.0 - FORGET * part;
            cell.reached = cell.reached * keep + part;
            cell.ended = cell.ended * keep + f64::from(u8::from(index == last && ended));
            cell.past = match cell.reached >= SEEN_MIN {
                true => (1.0 - cell.ended / cell.reached).max(0.0),
                false => -1.0,
            };
        }
    }

    fn past(&self, index: usize) -> Option<f64> {
        let cell = self.cells.get(index).filter(|cell| cell.past >= 0.0);
        cell.map(|cell| cell.past)
    }

    /// The means of the tokens, at most `limit`, and of their square. Within a cell as many end at each token.
    fn moments(&self, limit: u32, unseen: Unseen) -> (f64, f64) {
        let (mut sum, mut squares, mut alive) = (0.0, 0.0, 1.0);
        let mut from = 0;
        while from < limit {
            let index = cell_of(from);
            let mut to = start_of(index + 1).min(u64::from(limit)) as u32;
            let past = match (self.past(index), unseen) {
                (Some(past), _) => part(past, index, from, to),
                (None, Unseen::Short) => break,
                (None, Unseen::Long) => {
                    to = limit;
                    1.0
                }
            };
            // Of those that come so far, the mean of the tokens that they generate here; and the square grows
            // by twice the place for each.
            let tokens = alive * f64::from(to - from) * (1.0 + past) / 2.0;
            sum += tokens;
            squares += tokens * f64::from(from + to);
            alive *= past;
            from = to;
        }
        (sum, squares)
    }

    /// The chance that one with `done` tokens gets `more`; 0 once nothing is known.
    fn lasting(&self, done: u32, more: u32) -> f64 {
        let end = done.saturating_add(more);
        let (mut alive, mut from) = (1.0, done);
        while from < end && alive > 0.0 {
            let index = cell_of(from);
            let to = start_of(index + 1).min(u64::from(end)) as u32;
            match self.past(index) {
                Some(past) => alive *= part(past, index, from, to),
                None => return 0.0,
            }
            from = to;
        }
        alive
    }
}

/// The chance of getting from `from` to `to`, within a cell that is passed by a share of `past`.
fn part(past: f64, index: usize, from: u32, to: u32) -> f64 {
    let (start, end) = (start_of(index), start_of(index + 1));
    let width = (end - start) as f64;
    let alive = |at: u64| 1.0 - (1.0 - past) * (at - start) as f64 / width;
    let begun = alive(u64::from(from));
    if begun > 0.0 {
        alive(u64::from(to)) / begun
    } else {
        0.0
    }
}

/// Whether a count of tokens is the first of its cell: something new is known of a request that has come so
/// far.
pub(crate) fn is_milestone(tokens: u32) -> bool {
    start_of(cell_of(tokens)) == u64::from(tokens)
}

/// The next count of tokens, after `tokens`, that is one.
pub(crate) fn next_milestone(tokens: u32) -> u32 {
    u32::try_from(start_of(cell_of(tokens) + 1)).unwrap_or(u32::MAX)
}

/// The cell of a request that has generated so many tokens. Up to 8 tokens each count has its own; then
/// four cells make a doubling.
fn cell_of(tokens: u32) -> usize {
    match tokens {
        0..8 => tokens as usize,
        _ => {
            let exponent = tokens.ilog2();
            let quarter = (tokens >> (exponent - 2)) & 3;
            (8 + 4 * (exponent - 3) + quarter) as usize
        }
    }
}

/// The fewest tokens of a cell.
fn start_of(index: usize) -> u64 {
    match index {
        0..8 => index as u64,
        _ => {
            let (exponent, quarter) = ((index - 8) / 4 + 3, (index as u64 - 8) % 4);
            (4 + quarter) << (exponent - 2)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serve_core::{RequestId, Time, TokenId};

    use super::*;

    fn request(limit: u32) -> Request {
        Request::new(RequestId::new(1), Time::ZERO, [TokenId::new(1)], limit).unwrap()
    }

    fn with_prompt(tokens: usize, limit: u32) -> Request {
        Request::new(
            RequestId::new(1),
            Time::ZERO,
            vec![TokenId::new(1); tokens],
            limit,
        )
        .unwrap()
    }

    #[test]
    fn one_that_is_cut_off_at_once_displaces_nothing_that_others_have_taught() {
        for cut in [0, 1, 50] {
            let mut seen = SeenLengths::new();
            for _ in 0..100 {
                seen.ended(&with_prompt(10, 1_000), 100, true);
            }
            let long = with_prompt(900, 1_000);
            let before = [Unseen::Short, Unseen::Long].map(|unseen| seen.expected(&long, unseen));
            for _ in 0..10 {
                seen.ended(&long, cut, false);
            }
            let after = [Unseen::Short, Unseen::Long].map(|unseen| seen.expected(&long, unseen));
            for (before, after) in before.iter().zip(after) {
                let moved = before.tokens.abs_diff(after.tokens);
                assert!(moved <= before.tokens / 10, "{cut}: {before:?} {after:?}");
            }
        }
    }

    #[test]
    fn cells_follow_each_other_without_gaps() {
        for tokens in (0..5_000).chain([u32::MAX - 1, u32::MAX]) {
            let index = cell_of(tokens);
            assert!(start_of(index) <= u64::from(tokens), "{tokens}");
            assert!(start_of(index + 1) > u64::from(tokens), "{tokens}");
        }
    }

    fn tokens(seen: &SeenLengths, limit: u32, unseen: Unseen) -> u32 {
        seen.expected(&request(limit), unseen).tokens
    }

    #[test]
    fn nothing_seen_is_short_for_oneself_and_long_for_others() {
        let seen = SeenLengths::new();
        assert_eq!(tokens(&seen, 500, Unseen::Short), 1);
        assert_eq!(tokens(&seen, 500, Unseen::Long), 500);
        assert_eq!(seen.chance(&request(500), 0, 3), 1.0);
    }

    #[test]
    fn limits_that_are_always_reached_are_the_lengths() {
        let mut seen = SeenLengths::new();
        for limit in (65..128).cycle().take(200) {
            seen.ended(&request(limit), limit, true);
        }
        let expected = seen.expected(&request(120), Unseen::Long);
        assert_eq!((expected.tokens, expected.spread), (120, 0));
        assert!((110..=120).contains(&tokens(&seen, 120, Unseen::Short)));
        assert_eq!(tokens(&seen, 70, Unseen::Short), 70);
        assert_eq!(seen.chance(&request(100), 0, 60), 0.0);
        assert_eq!(seen.chance(&request(100), 0, 100), 1.0);
    }

    #[test]
    fn those_that_were_ended_count_as_at_least_so_long() {
        // Nine of ten end after 20 tokens; the others are cut off after 300 and would have gone on.
        let mut seen = SeenLengths::new();
        for n in 0..2_000 {
            let (tokens, by_itself) = if n % 10 == 0 {
                (300, false)
            } else {
                (20, true)
            };
            seen.ended(&request(1_000), tokens, by_itself);
        }
        let expected = seen.expected(&request(1_000), Unseen::Long);
        assert!(
            (100..140).contains(&expected.tokens),
            "0.9 x 20 + 0.1 x 1,000"
        );
        assert!((250..350).contains(&expected.spread), "{expected:?}");
        // Survivors alone would say 20; and one that got past them is one of the long ones.
        assert!(seen.chance(&request(1_000), 0, 30) > 0.85);
        assert!(seen.chance(&request(1_000), 40, 200) < 0.01);
    }

    /// All are cancelled at one point, as by a deadline: nobody is seen to end before it.
    #[test]
    fn where_nobody_is_seen_to_end_there_is_no_chance_to() {
        for tokens in [5, 40, 800, 1_023] {
            let mut seen = SeenLengths::new();
            (0..20).for_each(|_| seen.ended(&request(1_500), tokens, false));
            assert_eq!(seen.chance(&request(1_500), 0, tokens), 0.0, "{tokens}");
            assert_eq!(
                seen.chance(&request(1_500), tokens, 700),
                1.0,
                "nobody knows"
            );
        }
    }

    #[test]
    fn prompts_tell_lengths_apart() {
        let with_prompt = |tokens: usize| {
            let prompt = vec![TokenId::new(1); tokens];
            Request::new(RequestId::new(1), Time::ZERO, prompt, 1_000).unwrap()
        };
        let mut seen = SeenLengths::new();
        for _ in 0..100 {
            seen.ended(&with_prompt(10), 12, true);
            seen.ended(&with_prompt(1_000), 400, true);
        }
        let tokens = |prompt| seen.expected(&with_prompt(prompt), Unseen::Long).tokens;
        assert!(
            tokens(12) < 16 && tokens(900) > 350,
            "{} {}",
            tokens(12),
            tokens(900)
        );
        let unlike = tokens(100);
        assert!((150..300).contains(&unlike), "{unlike}: as for all");
    }

    /// Requests with short prompts have short answers, and end first. One long answer to a long prompt is enough for
    /// those that wait not to be taken for short.
    #[test]
    fn a_single_long_answer_tells_of_those_like_it() {
        let with_prompt = |tokens: u32| {
            let id = RequestId::new(1);
            Request::of_lengths(id, Time::ZERO, tokens, 1_000).unwrap()
        };
        let expected = |seen: &SeenLengths, unseen| seen.expected(&with_prompt(900), unseen).tokens;
        let mut seen = SeenLengths::new();
        for others in 0..200 {
            let of_others = (12..16).contains(&expected(&seen, Unseen::Long));
            assert_eq!(of_others, others >= SEEN_ENOUGH, "{others}");
            seen.ended(&with_prompt(10), 12, true);
        }
        seen.ended(&with_prompt(1_000), 400, true);
        for unseen in [Unseen::Short, Unseen::Long] {
            let tokens = expected(&seen, unseen);
            assert!((384..450).contains(&tokens), "{tokens}");
        }
        // Cut off, it was at least so long.
        let mut seen = SeenLengths::new();
        seen.ended(&with_prompt(1_000), 400, false);
        assert!(expected(&seen, Unseen::Long) > 900);
        let short = expected(&seen, Unseen::Short);
        assert!((384..450).contains(&short), "{short}");
    }

    proptest! {
        /// Whatever was seen: the mean lies within the limits, and a chance is one, and grows with time.
        #[test]
        fn estimates_stay_in_range(
            ends in prop::collection::vec((1_u32..3_000, 0_u32..3_000, any::<bool>()), 0..200),
            limit in 1_u32..3_000,
            done in 0_u32..3_000,
        ) {
            let mut seen = SeenLengths::new();
            for (limit, tokens, by_itself) in ends {
                seen.ended(&request(limit), tokens.min(limit), by_itself);
            }
            let (asked, done) = (request(limit), done.min(limit - 1));
            let short = seen.expected(&asked, Unseen::Short);
            let long = seen.expected(&asked, Unseen::Long);
            prop_assert!(1 <= short.tokens && short.tokens <= long.tokens && long.tokens <= limit);
            prop_assert!(short.spread <= limit && long.spread <= limit);
            let chances = (0..limit).step_by(7).map(|more| seen.chance(&asked, done, more));
            let mut least = 0.0;
            for chance in chances.collect::<Vec<_>>() {
                prop_assert!((0.0..=1.0).contains(&chance));
                prop_assert!(chance >= least - 1e-9, "{chance} after {least}");
                least = chance;
            }
        }
    }
}
