//! The needed part of RESP3, over one connection:
//! <https://redis.io/docs/latest/develop/reference/protocol-spec/>.

use std::net::Ipv4Addr;

use anyhow::{Context as _, Result, bail};
use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Longest accepted line and string.
const LONGEST: usize = 1 << 20;

/// A value from the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    Text(String),
    Number(u64),
    Error(String),
    /// Null, or a value of a type that is not needed here.
    Nothing,
    /// An array, or the keys and values of a map.
    List(Vec<Value>),
    /// A message that the server pushes.
    Push(Vec<Value>),
}

/// One connection.
pub(crate) struct Connection {
    stream: TcpStream,
    read: BytesMut,
}

impl Connection {
    pub(crate) async fn open(port: u16) -> Result<Self> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        stream.set_nodelay(true)?;
        let read = BytesMut::new();
        Ok(Self { stream, read })
    }

    /// Sends commands in one write.
    pub(crate) async fn send(&mut self, commands: &[&[&str]]) -> Result<()> {
        let mut text = String::new();
        for command in commands {
            text += &format!("*{}\r\n", command.len());
            for word in *command {
                text += &format!("${}\r\n{word}\r\n", word.len());
            }
        }
        Ok(self.stream.write_all(text.as_bytes()).await?)
    }

    /// The next value. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<Value> {
        loop {
            if let Some((value, length)) = parse(&self.read)? {
                self.read.advance(length);
                return Ok(value);
            }
            if self.stream.read_buf(&mut self.read).await? == 0 {
                bail!("the server has closed the connection");
            }
        }
    }

    /// The answer to one command. There must be no subscription.
    pub(crate) async fn ask(&mut self, command: &[&str]) -> Result<Value> {
        self.send(&[command]).await?;
        match self.next().await? {
            Value::Error(error) => bail!("{command:?}: {error}"),
            value => Ok(value),
        }
    }
}

/// The first value and its length; none if it is incomplete.
fn parse(bytes: &[u8]) -> Result<Option<(Value, usize)>> {
    let Some(end) = bytes.windows(2).position(|pair| pair == b"\r\n") else {
        if bytes.len() > LONGEST {
            bail!("a line without an end");
        }
        return Ok(None);
    };
    let line = std::str::from_utf8(&bytes[..end])?;
    let mut after = end + 2;
    let (Some(kind), Some(rest)) = (line.get(..1), line.get(1..)) else {
        bail!("an empty line");
    };
    let value = match kind {
        "+" => Value::Text(rest.to_owned()),
        "-" => Value::Error(rest.to_owned()),
        ":" => Value::Number(rest.parse().context("a number")?),
        "_" | "#" | "," => Value::Nothing,
        "$" => {
            let length: usize = rest.parse().context("a length")?;
            if length > LONGEST {
                bail!("a string of {length} bytes");
            }
            let Some(text) = bytes.get(after..after + length) else {
                return Ok(None);
            };
            if bytes.len() < after + length + 2 {
                return Ok(None);
            }
            after += length + 2;
            Value::Text(std::str::from_utf8(text)?.to_owned())
        }
        "*" | "%" | ">" => {
            let count: usize = rest.parse().context("a length")?;
            let count = if kind == "%" { count * 2 } else { count };
            let mut values = Vec::new();
            for _ in 0..count {
                let Some((value, length)) = parse(&bytes[after..])? else {
                    return Ok(None);
                };
                after += length;
                values.push(value);
            }
            if kind == ">" {
                Value::Push(values)
            } else {
                Value::List(values)
            }
        }
        _ => bail!("an answer that begins with {kind}"),
    };
    Ok(Some((value, after)))
}

/// The message of a published value, if it is one.
pub(crate) fn message(value: &Value) -> Option<&str> {
    match value {
        Value::Push(values) => match values.as_slice() {
            [Value::Text(kind), _, Value::Text(text)] if kind == "message" => Some(text),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_read_once_it_is_complete() {
        let bytes = b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$3\r\n4 2\r\n:1\r\n";
        let end = bytes.len() - 4;
        for length in 0..end {
            assert_eq!(parse(&bytes[..length]).unwrap(), None, "{length}");
        }
        let (value, length) = parse(bytes).unwrap().unwrap();
        assert_eq!((message(&value), length), (Some("4 2"), end));
        assert_eq!(parse(&bytes[end..]).unwrap(), Some((Value::Number(1), 4)));
    }

    #[test]
    fn a_map_is_the_list_of_its_keys_and_values() {
        let (value, _) = parse(b"%1\r\n+a\r\n_\r\n").unwrap().unwrap();
        assert_eq!(value, Value::List(vec![Value::Text("a".into()), Value::Nothing]));
        assert!(parse(b"?\r\n").is_err());
    }
}
