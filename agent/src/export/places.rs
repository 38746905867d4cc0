//! Who stays when more want to connect than there are places: whoever does nothing goes first, the longest first.
//!
//! So nobody who opens connections and leaves them alone, sends half a head, or does not take its answer, keeps a probe or a scrape
//! out: what is asked at once is answered at once.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::Notify,
    time::Instant,
};
use tokio_io_timeout::TimeoutStream;

/// All places.
#[derive(Clone, Debug)]
pub(super) struct Places(Arc<Mutex<Taken>>);

#[derive(Debug)]
struct Taken {
    /// Most connections.
    most: usize,
    /// Most of them whose answer is not written to its end: each holds that answer in memory.
    most_answers: usize,
    /// The first one goes first.
    in_order: BTreeMap<Order, Connection>,
    by_number: HashMap<u64, Order>,
    next: u64,
    given_up: u64,
}

/// Whoever has no answer to take goes before those who have; among equals the one for which that has not changed for the longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Order {
    answering: bool,
    /// Rises with each change.
    turn: u64,
}

#[derive(Debug)]
struct Connection {
    number: u64,
    /// The time of the turn.
    since: Instant,
    gone: Arc<Notify>,
}

impl Places {
    pub(super) fn new(most: usize, most_answers: usize) -> Self {
        let (in_order, by_number) = (BTreeMap::new(), HashMap::new());
        Self(Arc::new(Mutex::new(Taken { most, most_answers, in_order, by_number, next: 0, given_up: 0 })))
    }

    /// A place for a new connection. Where there is none, the one goes that waits for a head for the longest; where none does, the one that
    /// takes its answer for the longest.
    pub(super) fn take(&self) -> Place {
        let mut taken = self.lock();
        if taken.in_order.len() >= taken.most {
            taken.give_up_first();
        }
        let gone = Arc::new(Notify::new());
        let number = taken.next + 1;
        taken.put(false, Connection { number, since: Instant::now(), gone: Arc::clone(&gone) });
        Place { places: self.clone(), number, gone }
    }

    /// Makes room where something else than places has run out: file descriptors.
    pub(super) fn make_room(&self) {
        self.lock().give_up_first();
    }

    /// Gives up those that have been taking their answer for longer than this.
    pub(super) fn give_up_overdue(&self, longest: Duration) {
        let mut taken = self.lock();
        while let Some((order, connection)) = taken.first_answer()
            && connection.since.elapsed() > longest
        {
            taken.give_up(order);
        }
    }

    /// How many were given up so far.
    pub(super) fn given_up(&self) -> u64 {
        self.lock().given_up
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        // Whole after each statement.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    fn put(&mut self, answering: bool, connection: Connection) {
        self.next += 1;
        let order = Order { answering, turn: self.next };
        self.by_number.insert(connection.number, order);
        self.in_order.insert(order, connection);
    }

    fn remove(&mut self, number: u64) -> Option<Connection> {
        self.by_number.remove(&number).and_then(|order| self.in_order.remove(&order))
    }

    fn give_up(&mut self, order: Order) {
        if let Some(connection) = self.in_order.remove(&order) {
            self.by_number.remove(&connection.number);
            connection.gone.notify_one();
            self.given_up += 1;
        }
    }

    fn give_up_first(&mut self) {
        if let Some(order) = self.in_order.keys().next().copied() {
            self.give_up(order);
        }
    }

    fn answers(&self) -> impl Iterator<Item = (&Order, &Connection)> {
        self.in_order.range(Order { answering: true, turn: 0 }..)
    }

    fn first_answer(&self) -> Option<(Order, &Connection)> {
        self.answers().next().map(|(order, connection)| (*order, connection))
    }

    fn is_answering(&self, number: u64) -> bool {
        self.by_number.get(&number).is_some_and(|order| order.answering)
    }

    /// Where it was given up already, nothing changes.
    fn change(&mut self, number: u64, answering: bool) {
        let Some(connection) = self.remove(number) else { return };
        self.put(answering, Connection { since: Instant::now(), ..connection });
        if self.answers().count() > self.most_answers
            && let Some((order, _)) = self.first_answer()
        {
            self.give_up(order);
        }
    }
}

/// The place of one connection; free again when dropped.
#[derive(Debug)]
pub(super) struct Place {
    places: Places,
    number: u64,
    gone: Arc<Notify>,
}

impl Place {
    /// Ends when the connection is to end for another's sake.
    pub(super) fn gone(&self) -> impl Future<Output = ()> + use<> {
        let gone = Arc::clone(&self.gone);
        async move { gone.notified().await }
    }

    /// What marks the beginning of an answer.
    pub(super) fn marker(&self) -> impl Fn() + Clone + use<> {
        let (places, number) = (self.places.clone(), self.number);
        move || places.lock().change(number, true)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.lock().remove(self.number);
    }
}

/// The stream of a connection, on which it is seen when an answer has been written to its end.
#[derive(Debug)]
pub(super) struct Watched {
    stream: Pin<Box<TimeoutStream<TcpStream>>>,
    places: Places,
    number: u64,
}

impl Watched {
    /// A client that takes nothing for `stall` is cut off.
    pub(super) fn new(stream: TcpStream, stall: Duration, place: &Place) -> Self {
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(stall));
        Self { stream: Box::pin(stream), places: place.places.clone(), number: place.number }
    }
}

impl AsyncRead for Watched {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_read(context, buffer)
    }
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.stream.as_mut().poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.stream.as_mut().poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// hyper comes here when its own buffer is empty, and every answer of ours is in that buffer whole.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = self.stream.as_mut().poll_flush(context);
        if matches!(flushed, Poll::Ready(Ok(()))) {
            let mut taken = self.places.lock();
            if taken.is_answering(self.number) {
                taken.change(self.number, false);
            }
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(places: &Places) -> Vec<u64> {
        let mut numbers: Vec<u64> = places.lock().by_number.keys().copied().collect();
        numbers.sort_unstable();
        numbers
    }

    #[test]
    fn who_waits_for_the_longest_goes_first_and_who_is_answered_last() {
        let places = Places::new(3, 2);
        let (first, second, third) = (places.take(), places.take(), places.take());
        first.marker()();
        let fourth = places.take();
        assert_eq!(numbers(&places).len(), 3);
        assert!(!numbers(&places).contains(&second.number), "the first is answered, the second does nothing");
        third.marker()();
        fourth.marker()();
        assert!(!numbers(&places).contains(&first.number), "no more than two answers at once");
        let fifth = places.take();
        let sixth = places.take();
        assert!(!numbers(&places).contains(&fifth.number), "answers stay where one waits");
        assert_eq!(numbers(&places), [third.number, fourth.number, sixth.number]);
        assert_eq!(places.given_up(), 3);
        drop(third);
        assert_eq!(numbers(&places), [fourth.number, sixth.number]);
    }

    #[test]
    fn only_answers_are_overdue() {
        let places = Places::new(3, 3);
        let (waiting, answering) = (places.take(), places.take());
        answering.marker()();
        places.give_up_overdue(Duration::from_secs(60));
        assert_eq!(places.given_up(), 0);
        std::thread::sleep(Duration::from_millis(2));
        places.give_up_overdue(Duration::from_millis(1));
        assert_eq!(numbers(&places), [waiting.number]);
    }
}
