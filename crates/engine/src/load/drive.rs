//! The open loop.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    rc::Rc,
    time::Duration,
};

use ciphertoll_channel::{Client, Error, Lane, Times, clock};
use ciphertoll_wire::{ExchangeOutcome, Load, LoadJob, Nanos, Outcome};
use tokio::{sync::Notify, task::spawn_local};

use crate::{
    pacer::{Paced, Waiter},
    record::Recorder,
    stop::Stop,
};

/// When everything happens.
#[derive(Clone, Copy)]
pub struct Plan {
    /// The first exchange is due.
    pub from: Nanos,
    /// The measured time begins.
    pub measure_from: Nanos,
    /// The measured time ends.
    pub measure_to: Nanos,
    paced: Option<Paced>,
}

impl Plan {
    /// The plan of `load` if it begins at `from`.
    pub fn new(load: &Load, from: Nanos) -> Self {
        let (warm_up, duration, paced) = match load {
            Load::Paced { rate_hz, warm_up_ns, duration_ns, .. } => {
                (*warm_up_ns, *duration_ns, Some(Paced::new(from, *rate_hz)))
            }
            Load::Idle { warm_up_ns, duration_ns } => (*warm_up_ns, *duration_ns, None),
        };
        Self { from, measure_from: from + warm_up, measure_to: from + warm_up + duration, paced }
    }
}

/// What the pacing loop and the lanes share.
pub struct Drive<C: Client> {
    client: C,
    payload: Vec<u8>,
    recorder: Rc<RefCell<Recorder>>,
    /// Lanes without an exchange, the last used on top.
    idle: RefCell<Vec<Rc<Slot>>>,
    /// Exchanges that fell due while `in_flight` others were under way.
    backlog: RefCell<VecDeque<usize>>,
    lanes: Cell<usize>,
    under_way: Cell<usize>,
    in_flight: usize,
    connect_timeout: Nanos,
    exchange_timeout: Nanos,
    lost: RefCell<Option<Error>>,
    /// Something was put into `lost`.
    gave_up: Notify,
    /// Nothing is under way any more.
    answered: Notify,
}

/// Where a waiting lane is given its next exchange.
#[derive(Default)]
struct Slot {
    index: Cell<usize>,
    wake: Notify,
}

impl<C: Client> Drive<C> {
    /// Takes over a connected client.
    pub fn new(job: &LoadJob, client: C, payload: Vec<u8>, recorder: Rc<RefCell<Recorder>>) -> Rc<Self> {
        let in_flight = match job.load {
            Load::Paced { in_flight, .. } => in_flight,
            Load::Idle { .. } => 1,
        };
        Rc::new(Self {
            client,
            payload,
            recorder,
            idle: RefCell::new(Vec::with_capacity(64)),
            backlog: RefCell::new(VecDeque::with_capacity(1024)),
            lanes: Cell::new(0),
            under_way: Cell::new(0),
            in_flight,
            connect_timeout: job.connect_timeout_ns,
            exchange_timeout: job.exchange_timeout_ns,
            lost: RefCell::new(None),
            gave_up: Notify::new(),
            answered: Notify::new(),
        })
    }

    /// Sends everything, waits for the answers, and returns this thread's processor time in the measured time.
    ///
    /// # Errors
    /// The peer vanished, or a signal came.
    pub async fn run(self: &Rc<Self>, plan: &Plan, first: C::Lane, stop: &mut Stop) -> Result<Nanos, Error> {
        let slot = Rc::new(Slot::default());
        self.idle.borrow_mut().push(slot.clone());
        self.lanes.set(1);
        spawn_local(self.clone().work(Some(first), slot, None));
        let heartbeat = spawn_local(heartbeat());
        // A task of its own: waking the runtime's main future costs a system call each time, waking a task does not.
        let mut pacing = spawn_local(self.clone().pace(*plan));
        tokio::select! {
            biased;
            paced = &mut pacing => {
                let measured = paced.map_err(|e| Error::failed(Outcome::Panic, e))?;
                let measured = measured.map_err(|e| Error::failed(Outcome::Machine, e))?;
                self.drain(stop).await.map(|()| measured)
            }
            () = stop.requested() => Err(Error::failed(Outcome::Interrupted, "ended by a signal")),
            error = self.lost() => Err(error),
        }
        .inspect(|_| heartbeat.abort())
        .inspect_err(|_| pacing.abort())
    }

    async fn pace(self: Rc<Self>, plan: Plan) -> std::io::Result<Nanos> {
        let waiter = Waiter::new()?;
        let (total, measured_from) = plan.paced.map_or((0, 0), |p| {
            (p.count(plan.measure_to.since(plan.from)), p.count(plan.measure_from.since(plan.from)))
        });
        let mut cpu_from = None;
        for index in 0..total {
            let due = plan.paced.map_or(plan.from, |p| p.due(index));
            if index == measured_from {
                waiter.until(plan.measure_from).await?;
                cpu_from = Some(clock::thread_cpu());
            }
            waiter.until(due).await?;
            self.dispatch(due);
        }
        if cpu_from.is_none() {
            waiter.until(plan.measure_from).await?;
        }
        let cpu_from = cpu_from.unwrap_or_else(clock::thread_cpu);
        waiter.until(plan.measure_to).await?;
        Ok(clock::thread_cpu().since(cpu_from))
    }

    /// Hands over an exchange that is due now; never waits.
    fn dispatch(self: &Rc<Self>, due: Nanos) {
        let index = self.recorder.borrow_mut().due(due);
        self.under_way.set(self.under_way.get() + 1);
        let idle = self.idle.borrow_mut().pop();
        if let Some(slot) = idle {
            slot.index.set(index);
            slot.wake.notify_one();
        } else if self.lanes.get() < self.in_flight {
            self.open_lane(index);
        } else {
            self.recorder.borrow_mut().hold(index);
            self.backlog.borrow_mut().push_back(index);
        }
    }

    fn open_lane(self: &Rc<Self>, index: usize) {
        self.lanes.set(self.lanes.get() + 1);
        spawn_local(self.clone().work(None, Rc::new(Slot::default()), Some(index)));
    }

    /// One lane: an exchange at a time, until one fails.
    async fn work(self: Rc<Self>, lane: Option<C::Lane>, slot: Rc<Slot>, first: Option<usize>) {
        let mut lane = match lane {
            Some(lane) => lane,
            None => match self.open().await {
                Ok(lane) => lane,
                Err(error) => return self.give_up(first, error),
            },
        };
        let mut index = match first {
            Some(index) => index,
            None => self.next(&slot).await,
        };
        while self.exchange(&mut lane, index).await {
            let waiting = self.backlog.borrow_mut().pop_front();
            index = if let Some(index) = waiting {
                index
            } else {
                self.idle.borrow_mut().push(slot.clone());
                self.next(&slot).await
            };
        }
        self.lanes.set(self.lanes.get() - 1);
        let waiting = self.backlog.borrow_mut().pop_front();
        if let Some(index) = waiting {
            self.open_lane(index);
        }
    }

    async fn next(&self, slot: &Slot) -> usize {
        slot.wake.notified().await;
        slot.index.get()
    }

    async fn open(&self) -> Result<C::Lane, Error> {
        tokio::time::timeout(self.connect_timeout.duration(), self.client.lane()).await.unwrap_or_else(|_| {
            let limit = self.connect_timeout.duration();
            Err(Error::failed(Outcome::Vanished, format!("no further connection within {limit:?}")))
        })
    }

    /// One exchange; says whether the lane is still good.
    async fn exchange(&self, lane: &mut C::Lane, index: usize) -> bool {
        let due = self.recorder.borrow().due_of(index);
        let left = (due + self.exchange_timeout).since(clock::now());
        let mut times = Times::default();
        let result = tokio::time::timeout(left.duration(), lane.exchange(&self.payload, &mut times)).await;
        let outcome = match result {
            Ok(Ok(())) => ExchangeOutcome::Done,
            Ok(Err(error)) => error.into(),
            Err(_) => ExchangeOutcome::TimedOut,
        };
        self.end(index, outcome, times, lane.connection());
        outcome == ExchangeOutcome::Done
    }

    fn end(&self, index: usize, outcome: ExchangeOutcome, times: Times, connection: u16) {
        self.recorder.borrow_mut().end(index, outcome, times, connection);
        self.under_way.set(self.under_way.get() - 1);
        if self.under_way.get() == 0 {
            self.answered.notify_one();
        }
    }

    fn give_up(&self, index: Option<usize>, error: Error) {
        if let Some(index) = index {
            self.end(index, ExchangeOutcome::Closed, Times::default(), u16::MAX);
        }
        let error = match error {
            // The peer was there when the load began.
            Error::Failed { reason, .. } => Error::failed(Outcome::Vanished, format!("the peer vanished: {reason}")),
            refused @ Error::Refused(_) => refused,
        };
        self.lost.borrow_mut().get_or_insert(error);
        self.gave_up.notify_one();
        self.answered.notify_one();
    }

    async fn lost(&self) -> Error {
        loop {
            let error = self.lost.borrow().clone();
            if let Some(error) = error {
                return error;
            }
            self.gave_up.notified().await;
        }
    }

    async fn drain(&self, stop: &mut Stop) -> Result<(), Error> {
        let answered = async {
            while self.under_way.get() > 0 && self.lost.borrow().is_none() {
                self.answered.notified().await;
            }
        };
        tokio::select! {
            // What does not answer in time is noted by its lane as timed out; a lane that panicked stays silent.
            _ = tokio::time::timeout((self.exchange_timeout + Nanos(1_000_000_000)).duration(), answered) => {}
            () = stop.requested() => return Err(Error::failed(Outcome::Interrupted, "ended by a signal")),
        }
        let lost = self.lost.borrow().clone();
        lost.map_or(Ok(()), Err)
    }
}

/// Keeps a timer pending that is due before any time limit. Without one, each limit that is set makes the runtime
/// write to itself, a system call for every exchange.
async fn heartbeat() {
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

#[cfg(test)]
mod tests {
    use ciphertoll_channel::{ExchangeError, Target};
    use ciphertoll_wire::{Channel, HttpVersion, Peer};

    use super::*;

    /// A client whose fourth exchange panics and whose sixth finds the connection closed.
    struct Breaking(Rc<Cell<usize>>);

    impl Client for Breaking {
        type Lane = Self;

        async fn connect(_: Target) -> Result<Self, Error> {
            Ok(Self(Rc::default()))
        }

        async fn lane(&self) -> Result<Self, Error> {
            Ok(Self(self.0.clone()))
        }
    }

    impl Lane for Breaking {
        fn connection(&self) -> u16 {
            0
        }

        async fn exchange(&mut self, _: &[u8], times: &mut Times) -> Result<(), ExchangeError> {
            self.0.set(self.0.get() + 1);
            assert_ne!(self.0.get(), 4, "the fourth exchange breaks");
            times.sent_ns = clock::now();
            times.done_ns = clock::now();
            if self.0.get() == 6 { Err(ExchangeError::Closed) } else { Ok(()) }
        }
    }

    fn job(samples: &str) -> LoadJob {
        let ms = |ms: u64| Nanos(ms * 1_000_000);
        LoadJob {
            channel: Channel::Http { http: HttpVersion::Http1 },
            peer: Peer { host: String::new(), port: 0, name: String::new(), ca_pem: None },
            load: Load::Paced { rate_hz: 200.0, size_bytes: 1, warm_up_ns: ms(0), duration_ns: ms(50), in_flight: 8 },
            samples: samples.into(),
            connect_timeout_ns: ms(100),
            exchange_timeout_ns: ms(100),
        }
    }

    #[test]
    fn a_lane_that_panics_or_fails_costs_its_own_exchange_and_no_other() {
        let file = std::env::temp_dir().join(format!("ciphertoll-drive-{}", std::process::id()));
        let job = job(&file.to_string_lossy());
        let recorder = Rc::new(RefCell::new(Recorder::new(&job.samples, 10).unwrap()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let client = Breaking(Rc::default());
            let lane = client.lane().await.unwrap();
            let plan = Plan::new(&job.load, clock::now());
            let drive = Drive::new(&job, client, vec![0], recorder.clone());
            drive.run(&plan, lane, &mut Stop::new().unwrap()).await.unwrap();
        });
        let counts = recorder.borrow().live().counts();
        assert_eq!((counts.due, counts.done, counts.closed, counts.unfinished), (10, 8, 1, 1));
        assert_eq!(recorder.borrow_mut().write().0, 10, "what was measured is on the disk");
        std::fs::remove_file(file).unwrap();
    }
}
