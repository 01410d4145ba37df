//! Pages of a column, checked before the library decodes them: it trusts what they announce.

use bytes::Bytes;
use parquet::basic::{Encoding, Type};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::serialized_reader::SerializedPageReader;
use std::fs::File;
use std::io::{BufReader, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Most bytes of a page; writers make pages of 1 MiB.
const MAX_PAGE: u64 = 64 << 20;
/// Bytes that are read ahead for the header of a page.
const HEADER: usize = 512;

/// A file that several readers read at their own positions.
#[derive(Debug)]
pub struct Source {
    file: Arc<File>,
    length: u64,
}

/// The bytes of a file from a position on.
pub struct At {
    file: Arc<File>,
    position: u64,
}

impl Source {
    pub fn new(file: File) -> std::io::Result<Self> {
        let length = file.metadata()?.len();
        Ok(Self { file: Arc::new(file), length })
    }

    fn at(&self, position: u64) -> BufReader<At> {
        BufReader::with_capacity(HEADER, At { file: Arc::clone(&self.file), position })
    }
}

impl Read for At {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let read = self.file.read_at(out, self.position)?;
        self.position += read as u64;
        Ok(read)
    }
}

impl Length for Source {
    fn len(&self) -> u64 {
        self.length
    }
}

impl ChunkReader for Source {
    type T = BufReader<At>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        Ok(self.at(start))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        if start.checked_add(length as u64).is_none_or(|end| end > self.length) {
            return Err(ParquetError::EOF(format!("the file of {} bytes ends too early", self.length)));
        }
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, start)?;
        Ok(bytes.into())
    }
}

/// A source of which the library reads pages: it begins each by reading a header, before it reserves memory for what
/// that announces.
pub struct PageSource(pub Arc<Source>);

impl Length for PageSource {
    fn len(&self) -> u64 {
        self.0.len()
    }
}

impl ChunkReader for PageSource {
    type T = BufReader<At>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        let bytes = announced(&mut self.0.at(start))?;
        if bytes > MAX_PAGE {
            let problem = format!("a page announces {bytes} bytes, and at most {MAX_PAGE} are read");
            return Err(ParquetError::General(problem));
        }
        Ok(self.0.at(start))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        self.0.get_bytes(start, length)
    }
}

/// Bytes of the page whose header begins here, uncompressed: the second field of a struct in Thrift's compact protocol,
/// in which every writer writes the fields in order (a page's type, then this, both zigzag integers).
fn announced(header: &mut impl Read) -> Result<u64> {
    /// The next field, an i32.
    const NEXT_I32: u8 = 0x15;
    let mut byte = || -> Result<u8> {
        let mut byte = [0];
        header.read_exact(&mut byte)?;
        Ok(byte[0])
    };
    let mut value = 0;
    for _ in 0..2 {
        if byte()? != NEXT_I32 {
            return Err(ParquetError::General("a page has no header".to_owned()));
        }
        value = 0;
        for shift in (0..35).step_by(7) {
            let next = byte()?;
            value |= u64::from(next & 0x7f) << shift;
            if next < 0x80 {
                break;
            }
        }
    }
    // A negative number is an odd one here, which the library refuses.
    Ok(value / 2)
}

/// Pages of a column of a row group.
pub struct Pages {
    inner: SerializedPageReader<PageSource>,
    physical: Type,
    optional: bool,
    dictionary: bool,
    /// Rows that further pages can have.
    rows: usize,
}

impl Pages {
    pub fn new(inner: SerializedPageReader<PageSource>, physical: Type, optional: bool, rows: usize) -> Self {
        Self { inner, physical, optional, dictionary: false, rows }
    }

    fn check(&mut self, page: &Page) -> std::result::Result<(), String> {
        let (values, bytes) = (page.num_values() as usize, page.buffer().len());
        match page {
            Page::DictionaryPage { .. } => {
                let width = match self.physical {
                    Type::INT32 | Type::FLOAT => 4,
                    Type::INT64 | Type::DOUBLE => 8,
                    other => return Err(format!("a dictionary of {other}")),
                };
                if values.checked_mul(width).is_none_or(|needed| needed > bytes) {
                    return Err(format!("a dictionary announces {values} values in {bytes} bytes"));
                }
                self.dictionary = true;
                return Ok(());
            }
            Page::DataPage { def_level_encoding, .. } => {
                if self.optional && *def_level_encoding != Encoding::RLE {
                    return Err(format!("definition levels are encoded as {def_level_encoding}"));
                }
            }
            Page::DataPageV2 { def_levels_byte_len, rep_levels_byte_len, .. } => {
                if *rep_levels_byte_len > 0 || *def_levels_byte_len as usize > bytes {
                    return Err(format!("levels of {def_levels_byte_len} bytes in a page of {bytes}"));
                }
            }
        }
        self.rows = self.rows.checked_sub(values).ok_or("pages have more values than the row group has rows")?;
        self.encoded(page.encoding())
    }

    /// Whether values of the column can be encoded so.
    fn encoded(&self, encoding: Encoding) -> std::result::Result<(), String> {
        let known = match encoding {
            Encoding::PLAIN => true,
            Encoding::RLE => self.physical == Type::BOOLEAN,
            Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY => self.dictionary,
            Encoding::DELTA_BINARY_PACKED => matches!(self.physical, Type::INT32 | Type::INT64),
            Encoding::BYTE_STREAM_SPLIT => self.physical != Type::BOOLEAN,
            _ => false,
        };
        if known { Ok(()) } else { Err(format!("values of type {} are encoded as {encoding}", self.physical)) }
    }
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        while let Some(page) = self.inner.get_next_page()? {
            self.check(&page).map_err(ParquetError::General)?;
            // The library takes an empty page for the end.
            if page.is_dictionary_page() || page.num_values() > 0 {
                return Ok(Some(page));
            }
        }
        Ok(None)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.inner.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.inner.skip_next_page()
    }
}

impl Iterator for Pages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}
