//! The cost of expanding a pattern's character classes.
//!
//! A few bytes can name a class of a million characters, and case-insensitive classes are expanded
//! character by character: 1 KiB of `(?i)` and `[!-\x{10ffff}]` took a second, 7 ns for each
//! character. So the characters are counted in advance.

use std::convert::Infallible;

use regex_syntax::ast::{self, Ast, ClassSetItem, Flag, Flags, Visitor};

/// The count for a named class such as `\pL`. Looking one up and sorting it took at most 250 us.
const NAMED: u32 = 0x8000;

/// The number of characters in the classes of a pattern.
pub(super) fn of(pattern: &Ast) -> u32 {
    match ast::visit(pattern, Counted::default()) {
        Ok(reach) => reach,
        Err(never) => match never {},
    }
}

#[derive(Default)]
struct Counted {
    named: u32,
    in_ranges: u32,
    ignores_case: bool,
}

impl Counted {
    fn flags(&mut self, flags: &Flags) {
        self.ignores_case |= flags.flag_state(Flag::CaseInsensitive) == Some(true);
    }
}

impl Visitor for Counted {
    type Output = u32;
    type Err = Infallible;

    fn finish(self) -> Result<u32, Infallible> {
        // In a case-sensitive pattern a range costs only its two ends.
        let in_ranges = if self.ignores_case { self.in_ranges } else { 0 };
        Ok(in_ranges.saturating_add(self.named.saturating_mul(NAMED)))
    }

    fn visit_pre(&mut self, ast: &Ast) -> Result<(), Infallible> {
        match ast {
            Ast::Flags(set) => self.flags(&set.flags),
            Ast::Group(group) => group.flags().into_iter().for_each(|flags| self.flags(flags)),
            Ast::ClassUnicode(_) => self.named = self.named.saturating_add(1),
            _ => {}
        }
        Ok(())
    }

    fn visit_class_set_item_pre(&mut self, item: &ClassSetItem) -> Result<(), Infallible> {
        match item {
            ClassSetItem::Unicode(_) => self.named = self.named.saturating_add(1),
            ClassSetItem::Range(range) => {
                let (first, last) = (u32::from(range.start.c), u32::from(range.end.c));
                self.in_ranges = self.in_ranges.saturating_add(last.saturating_sub(first));
            }
            // Everything outside it belongs to the class around it.
            ClassSetItem::Bracketed(class) if class.negated => {
                self.in_ranges = self.in_ranges.saturating_add(u32::from(char::MAX));
            }
            ClassSetItem::Ascii(class) if class.negated => {
                self.in_ranges = self.in_ranges.saturating_add(u32::from(char::MAX));
            }
            _ => {}
        }
        Ok(())
    }
}
