//! A port for an engine that is started here, which nobody else is given meanwhile.
//!
//! A port that is looked for, closed and handed on can be somebody else's by the time that the engine takes it. Here it
//! stays bound, by a socket that does not listen, for as long as the server lives. The system gives a bound port
//! to nobody who asks for any port, and lets an engine that allows addresses to be used again (all servers do) bind it beside
//! that socket. An engine that is started anew has the same port.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use socket2::{Domain, Socket, Type};

/// A port of the loopback address, bound.
#[derive(Debug)]
pub(super) struct ReservedPort {
    port: u16,
    _socket: Socket,
}

impl ReservedPort {
    /// Any port that is free.
    ///
    /// # Errors
    ///
    /// Where the system has none.
    pub(super) fn any() -> io::Result<Self> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        // An engine may ask for the one or the other.
        socket.set_reuse_address(true)?;
        #[cfg(unix)]
        socket.set_reuse_port(true)?;
        socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
        let address = socket.local_addr()?.as_socket();
        let address = address.ok_or_else(|| io::Error::other("a socket without an address"))?;
        Ok(Self {
            port: address.port(),
            _socket: socket,
        })
    }

    pub(super) fn get(&self) -> u16 {
        self.port
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn ports_that_are_reserved_are_different_and_their_engines_can_take_them() {
        let ports: Vec<ReservedPort> = (0..64).map(|_| ReservedPort::any().unwrap()).collect();
        let others: Vec<TcpListener> = (0..64)
            .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
            .collect();
        let taken = others
            .iter()
            .map(|other| other.local_addr().unwrap().port());
        let all: BTreeSet<u16> = ports.iter().map(ReservedPort::get).chain(taken).collect();
        assert_eq!(all.len(), 128);
        for port in &ports {
            assert!(
                TcpStream::connect(("127.0.0.1", port.get())).is_err(),
                "nobody listens"
            );
            // One after the other, as when it is started anew; on all addresses, too.
            for address in ["127.0.0.1", "0.0.0.0"] {
                let engine = TcpListener::bind((address, port.get())).unwrap();
                let client = TcpStream::connect(("127.0.0.1", port.get())).unwrap();
                let (_accepted, _) = engine.accept().unwrap();
                drop(client);
            }
        }
    }

    #[test]
    fn an_engine_that_shares_its_port_can_take_it_too() {
        let port = ReservedPort::any().unwrap();
        let engine = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        engine.set_reuse_port(true).unwrap();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port.get()));
        engine.bind(&address.into()).unwrap();
        engine.listen(8).unwrap();
        assert!(TcpStream::connect(address).is_ok());
    }
}
