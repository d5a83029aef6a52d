//! The queue over virtual time.

use ciphertoll_link::{Counters, Direction, Fate, Jitter, Loss, Queue, Reorder};
use proptest::prelude::*;

const MS: u64 = 1_000_000;

/// An arrival at the queue.
#[derive(Debug, Clone, Copy)]
struct Arrival {
    at_ns: u64,
    size_bytes: usize,
}

/// What came of offering packets number 0, 1, ... and polling each at the moment it was due.
#[derive(Debug, Default, PartialEq)]
struct Story {
    /// Time and number of each packet delivered.
    delivered: Vec<(u64, usize)>,
    lost: Vec<usize>,
    overflowed: Vec<usize>,
    counters: Counters,
}

fn play(direction: &Direction, seed: u64, arrivals: &[Arrival]) -> Story {
    let mut queue = Queue::new(direction.clone(), seed).expect("a valid direction");
    let mut story = Story::default();
    for (number, arrival) in arrivals.iter().enumerate() {
        deliver(&mut queue, arrival.at_ns, &mut story);
        match queue.offer(arrival.at_ns, arrival.size_bytes, number) {
            Fate::OnTheWay => {}
            Fate::Lost(packet) => story.lost.push(packet),
            Fate::Overflowed(packet) => story.overflowed.push(packet),
        }
        assert_conserved(&queue);
    }
    deliver(&mut queue, u64::MAX, &mut story);
    assert!(queue.is_empty());
    assert_conserved(&queue);
    story.counters = queue.counters();
    story
}

fn deliver(queue: &mut Queue<usize>, until_ns: u64, story: &mut Story) {
    while let Some(due_ns) = queue.next_due().filter(|due_ns| *due_ns <= until_ns) {
        assert_eq!(queue.poll(due_ns - 1), None, "nothing comes out before it is due");
        story.delivered.push((due_ns, queue.poll(due_ns).expect("it is due")));
    }
}

fn assert_conserved(queue: &Queue<usize>) {
    let counters = queue.counters();
    let gone = counters.delivered + counters.lost + counters.overflowed;
    assert_eq!(counters.offered + counters.duplicated, gone + queue.len() as u64);
}

fn every(gap_ns: u64, size_bytes: usize, packets: u64) -> Vec<Arrival> {
    (0..packets).map(|packet| Arrival { at_ns: MS + packet * gap_ns, size_bytes }).collect()
}

fn order(story: &Story) -> Vec<usize> {
    story.delivered.iter().map(|(_, number)| *number).collect()
}

fn arrivals() -> impl Strategy<Value = Vec<Arrival>> {
    prop::collection::vec((0..3 * MS, 1..9_000usize), 1..300).prop_map(|gaps| {
        let mut at_ns = 1;
        let mut arrive = |(gap_ns, size_bytes)| {
            at_ns += gap_ns;
            Arrival { at_ns, size_bytes }
        };
        gaps.into_iter().map(&mut arrive).collect()
    })
}

fn jitter() -> impl Strategy<Value = Jitter> {
    prop_oneof![
        Just(Jitter::None),
        (0..10 * MS).prop_map(Jitter::per_flight),
        (0..10 * MS, any::<bool>()).prop_map(|(spread_ns, in_order)| Jitter::PerPacket { spread_ns, in_order }),
        (0..3 * MS, 0..50 * MS).prop_map(|(deviation_ns, memory_ns)| Jitter::Correlated { deviation_ns, memory_ns }),
    ]
}

fn loss() -> impl Strategy<Value = Loss> {
    let share = || 0.0..=1.0f64;
    prop_oneof![
        Just(Loss::None),
        share().prop_map(|probability| Loss::Independent { probability }),
        (share(), share(), share(), share()).prop_map(|(to_bad, to_good, loss_good, loss_bad)| {
            Loss::GilbertElliott { to_bad, to_good, loss_good, loss_bad }
        }),
    ]
}

fn directions() -> impl Strategy<Value = Direction> {
    let rate = prop::option::of(5_000..1_000_000_000u64);
    let reorder = prop::option::of((0.0..=1.0, 0..20 * MS));
    (10 * MS..50 * MS, jitter(), loss(), rate, prop::option::of(1..40usize), reorder, 0.0..=1.0f64).prop_map(
        |(delay_ns, jitter, loss, rate_bps, queue_packets, reorder, duplicate)| {
            let reorder = reorder.map(|(probability, late_ns)| Reorder { probability, late_ns });
            Direction { delay_ns, jitter, loss, rate_bps, queue_packets, reorder, duplicate }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    // `play` checks conservation after each packet.
    #[test]
    fn no_packet_appears_or_disappears(direction in directions(), arrivals in arrivals(), seed: u64) {
        let story = play(&direction, seed, &arrivals);
        prop_assert_eq!(story.counters.offered, arrivals.len() as u64);
        prop_assert_eq!(story.counters.delivered, story.delivered.len() as u64);
    }

    #[test]
    fn packets_come_out_in_the_order_of_their_due_times(direction in directions(), arrivals in arrivals()) {
        let story = play(&direction, 1, &arrivals);
        prop_assert!(story.delivered.is_sorted_by_key(|(due_ns, _)| *due_ns));
    }

    #[test]
    fn order_is_kept_where_nothing_may_pass(direction in directions(), arrivals in arrivals(), seed: u64) {
        let jitter = match direction.jitter {
            Jitter::PerPacket { spread_ns, .. } => Jitter::PerPacket { spread_ns, in_order: true },
            other => other,
        };
        let story = play(&Direction { reorder: None, jitter, ..direction }, seed, &arrivals);
        prop_assert!(order(&story).is_sorted());
        prop_assert_eq!(story.counters.reordered, 0);
    }

    #[test]
    fn the_same_seed_tells_the_same_story(direction in directions(), arrivals in arrivals(), seed: u64) {
        prop_assert_eq!(play(&direction, seed, &arrivals), play(&direction, seed, &arrivals));
    }

    #[test]
    fn the_losses_do_not_depend_on_the_other_impairments(
        one in directions(), other in directions(), loss in loss(), arrivals in arrivals(), seed: u64,
    ) {
        let one = Direction { loss, queue_packets: None, ..one };
        let other = Direction { loss, queue_packets: None, ..other };
        prop_assert_eq!(play(&one, seed, &arrivals).lost, play(&other, seed, &arrivals).lost);
    }

    #[test]
    fn a_full_queue_does_not_shift_later_losses(
        loss in loss(), limit in 1..5usize, arrivals in arrivals(), seed: u64,
    ) {
        let open = Direction { loss, rate_bps: Some(1_000_000), ..Direction::default() };
        let full = play(&Direction { queue_packets: Some(limit), ..open.clone() }, seed, &arrivals);
        let mut expected = play(&open, seed, &arrivals).lost;
        expected.retain(|number| !full.overflowed.contains(number));
        prop_assert_eq!(full.lost, expected);
    }

    #[test]
    fn a_delay_alone_is_exact(delay_ns in 0..500 * MS, arrivals in arrivals()) {
        let story = play(&Direction { delay_ns, ..Direction::default() }, 1, &arrivals);
        for ((due_ns, number), (index, arrival)) in story.delivered.iter().zip(arrivals.iter().enumerate()) {
            prop_assert_eq!((*due_ns, *number), (arrival.at_ns + delay_ns, index));
        }
    }

    #[test]
    fn the_rate_is_never_exceeded_and_never_wasted(rate_bps in 5_000..1_000_000_000u64, sizes in
        prop::collection::vec(1..9_000usize, 1..300)) {
        // All at once: the line is never idle, so the last bit of each packet has an exact time.
        let arrivals: Vec<Arrival> = sizes.iter().map(|size_bytes| Arrival { at_ns: 7, size_bytes: *size_bytes }).collect();
        let story = play(&Direction { rate_bps: Some(rate_bps), ..Direction::default() }, 1, &arrivals);
        let mut bits = 0u128;
        for ((due_ns, _), size_bytes) in story.delivered.iter().zip(&sizes) {
            bits += *size_bytes as u128 * 8;
            prop_assert_eq!(u128::from(*due_ns), 7 + bits * 1_000_000_000 / u128::from(rate_bps));
        }
    }
}

#[test]
fn an_idle_line_sends_at_once() {
    // 1,250 bytes at 1 Mbit/s take 10 ms; a packet each 30 ms never waits.
    let direction = Direction { rate_bps: Some(1_000_000), ..Direction::default() };
    let story = play(&direction, 1, &every(30 * MS, 1_250, 3));
    assert_eq!(story.delivered, [(11 * MS, 0), (41 * MS, 1), (71 * MS, 2)]);
}

#[test]
fn a_line_that_is_fed_just_in_time_keeps_its_rate() {
    // 8 bits at 3 Gbit/s take 2 2/3 ns: three packets take 8 ns, however the first two are rounded.
    let mut queue = Queue::new(Direction { rate_bps: Some(3_000_000_000), ..Direction::default() }, 1).unwrap();
    let mut now_ns = 0;
    for _ in 0..3 {
        assert_eq!(queue.offer(now_ns, 1, ()), Fate::OnTheWay);
        now_ns = queue.next_due().unwrap();
        assert_eq!(queue.poll(now_ns), Some(()));
    }
    assert_eq!(now_ns, 8);
}

#[test]
fn a_lost_packet_takes_its_time_on_the_line() {
    let lossy = |probability| Direction {
        rate_bps: Some(1_000_000),
        loss: Loss::Independent { probability },
        ..Direction::default()
    };
    let arrivals = every(0, 1_250, 50);
    let (lossless, half) = (play(&lossy(0.0), 3, &arrivals), play(&lossy(0.5), 3, &arrivals));
    assert!(half.lost.len() > 10);
    assert!(half.delivered.iter().all(|delivery| lossless.delivered.contains(delivery)));
}

#[test]
fn a_full_queue_drops_the_newest() {
    let direction = Direction { rate_bps: Some(1_000_000), queue_packets: Some(3), ..Direction::default() };
    let mut arrivals = every(0, 1_250, 5);
    // By then one has been sent, and there is room for one more.
    arrivals.push(Arrival { at_ns: 11 * MS, size_bytes: 1_250 });
    let story = play(&direction, 1, &arrivals);
    assert_eq!((order(&story), story.overflowed), (vec![0, 1, 2, 5], vec![3, 4]));
}

#[test]
fn travelling_packets_do_not_fill_the_queue() {
    let direction =
        Direction { delay_ns: 500 * MS, rate_bps: Some(1_000_000), queue_packets: Some(1), ..Direction::default() };
    let story = play(&direction, 1, &every(11 * MS, 1_250, 40));
    assert_eq!(story.counters.overflowed, 0);
}

#[test]
fn connections_of_the_same_number_meet_the_same_losses() {
    let loss = Loss::GilbertElliott { to_bad: 0.1, to_good: 0.3, loss_good: 0.02, loss_bad: 0.8 };
    let mut queue = Queue::new(Direction { loss, ..Direction::default() }, 42).unwrap();
    let mut connection = |number, packets: u64| -> Vec<bool> {
        queue.reseed(number);
        (0..packets).map(|packet| matches!(queue.offer(packet, 100, ()), Fate::Lost(()))).collect()
    };
    let first = connection(7, 200);
    let other = connection(8, 333);
    assert_eq!(connection(7, 200), first);
    assert_ne!(other[..200], first[..]);
}

#[test]
fn late_packets_are_passed_and_counted() {
    let reorder = Some(Reorder { probability: 0.25, late_ns: 5 * MS });
    let direction = Direction { delay_ns: 20 * MS, reorder, ..Direction::default() };
    let story = play(&direction, 1, &every(MS, 100, 10_000));
    // The last few have nobody behind them. 2.58 deviations of the binomial: 112.
    assert!(story.counters.reordered.abs_diff(2_500) < 120, "{}", story.counters.reordered);
    assert!(!order(&story).is_sorted());
}

#[test]
fn a_copy_arrives_right_behind_its_original() {
    let direction = Direction { delay_ns: 20 * MS, duplicate: 0.05, ..Direction::default() };
    let story = play(&direction, 1, &every(MS, 100, 10_000));
    let twice = story.delivered.windows(2).filter(|pair| pair[0] == pair[1]).count() as u64;
    assert_eq!(twice, story.counters.duplicated);
    // 2.58 deviations of the binomial: 56.
    assert!(twice.abs_diff(500) < 60, "{twice}");
    assert_eq!(story.counters.reordered, 0);
}

#[test]
fn jitter_per_packet_makes_a_dense_flow_later_if_order_is_kept() {
    let mean_ns = |jitter| {
        let direction = Direction { delay_ns: 20 * MS, jitter, ..Direction::default() };
        let arrivals = every(MS / 20, 100, 20_000);
        let story = play(&direction, 1, &arrivals);
        let late = story.delivered.iter().map(|(due_ns, number)| due_ns - arrivals[*number].at_ns);
        late.sum::<u64>() / 20_000
    };
    let passing = mean_ns(Jitter::PerPacket { spread_ns: 5 * MS, in_order: false });
    let in_order = mean_ns(Jitter::PerPacket { spread_ns: 5 * MS, in_order: true });
    assert!(passing.abs_diff(20 * MS) < MS / 10, "{passing}");
    assert!(in_order > 24 * MS, "{in_order}");
}

#[test]
fn the_packets_of_a_flight_keep_their_distances() {
    let direction = Direction { delay_ns: 20 * MS, jitter: Jitter::per_flight(5 * MS), ..Direction::default() };
    let arrivals: Vec<Arrival> = (0..50)
        .flat_map(|flight| {
            (0..4).map(move |packet| Arrival { at_ns: flight * 100 * MS + packet * 30_000, size_bytes: 900 })
        })
        .collect();
    let story = play(&direction, 1, &arrivals);
    let delays: Vec<u64> = story.delivered.iter().zip(&arrivals).map(|((due_ns, _), a)| due_ns - a.at_ns).collect();
    assert!(delays.chunks(4).all(|flight| flight.iter().all(|delay| *delay == flight[0])));
    assert!(delays.iter().min() < Some(&(17 * MS)) && delays.iter().max() > Some(&(23 * MS)));
}
