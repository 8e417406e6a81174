//! A client that has gone, noticed whatever lies unread in between.
//!
//! hyper looks for the end of a connection by reading on, and does not read on while a byte too many lies in
//! its buffer: a line break after the body, or the next request. The system knows better, so it is asked.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// How often the system is asked. What hyper sees by itself, it sees at once.
const EVERY: Duration = Duration::from_millis(500);

/// A socket that can be asked about while somebody else reads and writes it.
#[derive(Clone, Debug)]
pub(crate) struct Socket(Arc<TcpStream>);

impl Socket {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self(Arc::new(stream))
    }

    /// Waits until the other side has closed the connection or can no longer be reached.
    pub(crate) async fn hung_up(self) {
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while !self.is_hung_up() {
            ticks.tick().await;
        }
    }

    fn is_hung_up(&self) -> bool {
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        let mut asked = [PollFd::new(&*self.0, gone)];
        let at_once = Timespec::default();
        // A socket that cannot be asked is left to hyper.
        poll(&mut asked, Some(&at_once)).is_ok() && asked[0].revents().intersects(gone)
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.0.poll_read_ready(cx))?;
            match self.0.try_read_buf(buffer) {
                Ok(_) => return Poll::Ready(Ok(())),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(cx))?;
            match self.0.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(
            rustix::net::shutdown(&*self.0, rustix::net::Shutdown::Write).map_err(Into::into),
        )
    }
}
