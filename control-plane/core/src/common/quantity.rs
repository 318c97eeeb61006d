//! Kubernetes' notation of quantities (`100m`, `1Gi`, `1e3`).

/// Parses a quantity, in thousandths, rounded up; `None`: it is malformed or too large.
#[must_use]
pub fn quantity(text: &str) -> Option<i128> {
    parts(text, 1_000)
}

/// Parses a quantity, in billionths, which is Kubernetes' precision; `None`: it is malformed or too
/// large.
pub(crate) fn billionths(text: &str) -> Option<i128> {
    parts(text, 1_000_000_000)
}

/// Parses a quantity in units of `1/in_one`, rounded up.
fn parts(text: &str, in_one: i128) -> Option<i128> {
    let text = text.trim();
    let end = text
        .char_indices()
        .find(|(at, c)| !(c.is_ascii_digit() || *c == '.' || *at == 0 && matches!(c, '+' | '-')))
        .map_or(text.len(), |(at, _)| at);
    let (number, suffix) = text.split_at(end);
    let negative = number.starts_with('-');
    let (whole, fraction) = number
        .trim_start_matches(['+', '-'])
        .split_once('.')
        .unwrap_or((number.trim_start_matches(['+', '-']), ""));
    if whole.is_empty() && fraction.is_empty() || whole.len() + fraction.len() > 24 {
        return None;
    }
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    // As a fraction of integers.
    let mut above = digits.checked_mul(in_one)?;
    let mut below = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    match scale(suffix)? {
        Scale::Times(factor) => above = above.checked_mul(factor)?,
        Scale::Over(factor) => below = below.checked_mul(factor)?,
    }
    let amount = above / below + i128::from(above % below != 0);
    Some(if negative { -amount } else { amount })
}

enum Scale {
    Times(i128),
    Over(i128),
}

fn scale(suffix: &str) -> Option<Scale> {
    const KI: i128 = 1024;
    Some(match suffix {
        "" => Scale::Times(1),
        "n" => Scale::Over(1_000_000_000),
        "u" => Scale::Over(1_000_000),
        "m" => Scale::Over(1_000),
        "k" => Scale::Times(1_000),
        "M" => Scale::Times(1_000_000),
        "G" => Scale::Times(1_000_000_000),
        "T" => Scale::Times(1_000_000_000_000),
        "P" => Scale::Times(1_000_000_000_000_000),
        "E" => Scale::Times(1_000_000_000_000_000_000),
        "Ki" => Scale::Times(KI),
        "Mi" => Scale::Times(KI.pow(2)),
        "Gi" => Scale::Times(KI.pow(3)),
        "Ti" => Scale::Times(KI.pow(4)),
        "Pi" => Scale::Times(KI.pow(5)),
        "Ei" => Scale::Times(KI.pow(6)),
        exponent => {
            let exponent: i32 = exponent.strip_prefix(['e', 'E'])?.parse().ok()?;
            let factor = 10_i128.checked_pow(exponent.unsigned_abs())?;
            if exponent < 0 {
                Scale::Over(factor)
            } else {
                Scale::Times(factor)
            }
        }
    })
}
